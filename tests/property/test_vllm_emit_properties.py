"""Whatever stands in a plan, a real shell and a YAML reader get exactly that."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_shell import run_in_bash
from vllm_plans import plan_of, vllm_plan

from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_container import container_of
from trimtab.engines.vllm_emit import render_emit
from trimtab.planner.gpu_spec import decode_gpu_spec

# Everything but NUL, which no command line carries, and halves of characters, which no file does.
TEXT = st.text(
    st.one_of(
        st.sampled_from(" \t\n'\"\\$`!*?[]{}()<>|&;#~%^=-:,/aZ0é漢\u2028\x85\x1b\ufeff"),
        st.characters(exclude_characters="\x00", exclude_categories=("Cs",)),
    ),
    max_size=24,
)
NAMES = TEXT.filter(lambda text: text.strip() != "")
# A template given as text, or the name of one; what looks like a path of this machine must start at the root.
TEMPLATES = TEXT.map(lambda text: text.replace("/", "") or "x").filter(lambda text: not text.startswith("~"))
FOLDERS = TEXT.map(lambda text: f"/m/{text}").filter(lambda path: ":" not in path)


@st.composite
def plans(draw):
    values = {
        "default_chat_template_kwargs": json.dumps({draw(TEXT): draw(TEXT)}),
        "chat_template": draw(TEMPLATES),
        "api_key": json.dumps(draw(st.lists(NAMES, min_size=1, max_size=2))),
        "enable_prefix_caching": draw(st.booleans()),
        "max_num_seqs": draw(st.integers(1, 10**6)),
        "gpu_memory_utilization": draw(st.floats(0.01, 1)),
    }
    folder = draw(FOLDERS)
    return plan_of(
        "2xrtx4090", vllm_plan(draw(NAMES), folder, values | {"tensor_parallel_size": 2}, gpus=((0, 1),))
    )


def expected_run(plan):
    """What `docker run` must be called with, built without any quoting."""
    spec = container_of(plan.models[0], plan.models[0].replicas[0], gpus=plan.hardware.gpus)
    mount, _ = spec.mounts
    return (
        *("run", "-d", "--name", spec.name, "--gpus", '"device=0,1"', "--ipc=host", "--shm-size=16g"),
        *("-p", "8000:8000", "-v", f"{mount.source}:{mount.target}:ro"),
        *("-v", "/home/a b/.cache/vllm-containers:/root/.cache/vllm"),
        *(word for name, value in spec.env for word in ("-e", f"{name}={value}")),
        *("--label", f"trimtab.emitted={spec.name}"),
        *(spec.image, *spec.args),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shell")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans())
def test_docker_gets_exactly_what_was_planned(folder, plan):
    """No name, path or text of a stack file is torn apart, expanded or run by the shell."""
    for form in ("docker", "script"):
        done, calls = run_in_bash(render_emit(plan, form), folder)
        assert done.returncode == 0, done.stderr
        assert [call.args for call in calls if call.args[0] == "run"] == [expected_run(plan)]
        assert {call.args[0] for call in calls} <= {"ps", "rm", "run", "inspect"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans())
def test_vllm_gets_exactly_what_was_planned(folder, plan):
    """A pasted command starts the server that the plan shows, on its cards."""
    done, (call,) = run_in_bash(render_emit(plan, "command"), folder)
    argv = list(Vllm().render_argv(plan.models[0]))
    argv[argv.index("--host") + 1] = "0.0.0.0"
    argv[argv.index("{port}")] = "8000"

    assert done.returncode == 0, done.stderr
    assert (call.program, *call.args) == tuple(argv)
    assert (call.cards, call.offline) == ("0,1", "1")


@given(plan=plans())
def test_compose_gets_exactly_what_was_planned(plan):
    """The file reads back as the container, with dollars doubled for Compose."""
    (service,) = yaml.safe_load(render_emit(plan, "compose"))["services"].values()
    spec = container_of(plan.models[0], plan.models[0].replicas[0], gpus=plan.hardware.gpus)

    assert tuple(word.replace("$$", "$") for word in service["command"]) == spec.args
    assert all("$" not in word.replace("$$", "") for word in service["command"])
    assert service["volumes"][0]["source"].replace("$$", "$") == spec.mounts[0].source
    assert service["environment"] == dict(spec.env)


@given(order=st.permutations(range(6)), gpus=st.sampled_from(["2xrtx4090", "2xh200", "1xrtx4090,1xrtx3090"]))
def test_the_same_plan_gives_the_same_text(order, gpus):
    """Text depends on what is planned, not on the order in which it was written down."""
    values = {
        "tensor_parallel_size": 2, "max_model_len": 4096, "enforce_eager": True, "max_num_seqs": 4,
        "seed": 1, "watermark": 0.01,
    }  # fmt: skip
    turned = {name: values[name] for name in [list(values)[index] for index in order]}
    cards = decode_gpu_spec(gpus)
    first, second = (
        container_of(plan, plan.replicas[0], gpus=cards)
        for plan in (
            vllm_plan("m", "o/m", values, gpus=((0, 1),)),
            vllm_plan("m", "o/m", turned, gpus=((0, 1),)),
        )
    )
    assert first == second
