"""Pure. The plan as JSON: the fields that other tools rely on, and back for ``up --plan``."""

import json

import pytest

from trimtab.core.hardware import Host, Inventory
from trimtab.core.plan import (
    Change,
    GpuBudget,
    HostBudget,
    ModelPlan,
    Plan,
    PlanWarning,
    Rejection,
    ReplicaPlan,
    Setting,
)
from trimtab.core.stack import GatewaySettings
from trimtab.errors import StackFileError
from trimtab.stackfile.plan_document import plan_from_document, plan_to_document

GPU_BUDGET = GpuBudget(
    total_bytes=24,
    requested_bytes=None,
    weights_bytes=10,
    activation_bytes=1,
    non_torch_bytes=2,
    cuda_graph_bytes=3,
    kv_cache_bytes=4,
    outside_budget_bytes=5,
    error_bytes=6,
)
HOST_BUDGET = HostBudget(
    available_bytes=100,
    requested_bytes=60,
    weights_bytes=30,
    kv_cache_bytes=20,
    compute_bytes=5,
    process_bytes=5,
    prompt_cache_bytes=0,
    error_bytes=2,
)
PLAN = Plan(
    stack="box",
    fits=True,
    models=(
        ModelPlan(
            name="m",
            checkpoint="a.gguf",
            fits=True,
            engine="llama_cpp",
            engine_version="1.2",
            runtime="process",
            max_model_len=4096,
            settings=(
                Setting(name="n_threads", value=2, origin="measured", reason="2 cores"),
                Setting(name="flash_attn", value=True, origin="pinned"),
                Setting(name="rope_freq_scale", value=0.5, origin="default"),
                Setting(name="cache_type_k", value="q8_0", origin="chosen"),
                Setting(name="seed", value=None, origin="default"),
            ),
            replicas=(
                ReplicaPlan(replica_id="m-0", host=HOST_BUDGET, kv_cache_tokens=4096, max_concurrency=1.5),
                ReplicaPlan(replica_id="m-1", gpus=(0,), per_gpu=(GPU_BUDGET,), kv_block_tokens=16),
            ),
            argv=("python", "--port", "{port}"),
            env=(("A", "1"),),
            warnings=(PlanWarning(code="tight", text="little is left", source="probe"),),
        ),
    ),
    gateway=GatewaySettings(port=0, keys=("k",)),
    hardware=Inventory(
        host=Host(total_ram_bytes=10, available_ram_bytes=5, physical_cores=2, logical_cores=4, cpu_name="x")
    ),
    rejections=(Rejection(candidate=(("context", 8192),), code="ram", text="too large"),),
    nearest_fit=(Change(change=(("context", 4096),), text="context 4096"),),
)


def saved():
    return json.loads(json.dumps(plan_to_document(PLAN)))


def fault_of(document):
    with pytest.raises(StackFileError) as caught:
        plan_from_document(document, source="p.json")
    return caught.value.message


def changed(document, path, value):
    *parents, last = path.split(".")
    part = document
    for key in parents:
        part = part[int(key)] if isinstance(part, list) else part[key]
    if value is KeyError:
        del part[last]
    else:
        part[last] = value
    return document


def test_document_has_the_promised_fields():
    """Tools that read the plan find every field where it was promised."""
    document = saved()
    model = document["models"]["m"]

    assert {"schema", "fits", "hardware", "models", "rejections", "nearest_fit"} <= set(document)
    assert document["schema"] == 1
    assert {
        "fits",
        "engine",
        "engine_version",
        "settings",
        "replicas",
        "speed",
        "argv",
        "env",
        "warnings",
    } <= set(model)
    assert model["settings"] == {
        "n_threads": 2, "flash_attn": True, "rope_freq_scale": 0.5, "cache_type_k": "q8_0", "seed": None,
    }  # fmt: skip
    assert model["speed"] is None
    assert model["env"] == {"A": "1"}
    assert model["warnings"] == [{"code": "tight", "text": "little is left", "source": "probe"}]
    assert document["rejections"] == [{"candidate": {"context": 8192}, "code": "ram", "text": "too large"}]
    assert document["nearest_fit"] == [{"change": {"context": 4096}, "text": "context 4096"}]


def test_replicas_carry_both_kinds_of_budget():
    """Memory is found under per_gpu or host, never under both names."""
    on_host, on_gpu = saved()["models"]["m"]["replicas"]

    assert on_host["host"]["requested_bytes"] == 60
    assert on_host["per_gpu"] == []
    assert on_gpu["gpus"] == [0]
    assert on_gpu["host"] is None
    assert set(on_gpu["per_gpu"][0]) == {
        "total_bytes", "requested_bytes", "weights_bytes", "activation_bytes", "non_torch_bytes",
        "cuda_graph_bytes", "kv_cache_bytes", "outside_budget_bytes", "error_bytes",
    }  # fmt: skip
    assert {
        "kv_block_tokens", "kv_blocks", "kv_cache_tokens", "max_concurrency", "max_model_len_that_fits"
    } <= set(on_gpu)  # fmt: skip


def test_a_saved_plan_comes_back_equal():
    """``up --plan`` runs exactly what was reviewed."""
    assert plan_from_document(saved(), source="p.json") == PLAN


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(None, "p.json is not a saved plan", id="null"),
        pytest.param({"models": {}}, "p.json is not a saved plan", id="no schema"),
        pytest.param({"schema": 2}, "p.json: schema is 2, this version reads 1", id="later schema"),
        pytest.param({"schema": 1}, "p.json is not a whole plan: models is missing", id="cut short"),
    ],
)
def test_what_is_no_plan_is_refused(document, message):
    """A wrong file is told apart from a plan of another version."""
    assert fault_of(document) == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("stack", KeyError, "stack is missing"),
        ("models", [], "models is [], not keys and values"),
        ("models.m", None, "models.m is null, not keys and values"),
        ("fits", "yes", 'fits is "yes", not true or false'),
        ("rejections", {}, "rejections is {}, not a list"),
        ("rejections.0.candidate", KeyError, "rejections.candidate is missing"),
        ("models.m.origins.n_threads", KeyError, "models.m.origins.n_threads is missing"),
        ("models.m.env", [], "models.m.env is [], not keys and values"),
        ("models.m.argv", KeyError, "models.0.argv"),
        ("models.m.max_model_len", "long", "models.0.max_model_len: "),
        ("models.m.replicas.0.host.weights_bytes", 1.5, "models.0.replicas.0.host.weights_bytes: "),
        ("gateway.port", "x", "gateway.port: "),
        pytest.param(
            "models.m.replicas.0.host.weights_bytes",
            10**400,
            "models.m.replicas.0.host.weights_bytes is larger than any number",
            id="endless",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_plan_that_was_damaged_names_the_place(path, value, message):
    """Nothing is started from half a plan."""
    if path == "models.m.argv":
        value = 3
    assert fault_of(changed(saved(), path, value)).startswith(f"p.json is not a whole plan: {message}")
