"""Plans for llama.cpp on the CPU: what is chosen, obeyed, refused, and what would fit instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.plan import HostBudget, ModelPlan
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP
from trimtab.errors import StackFileError
from trimtab.planner.llama_cpp import LlamaCppOutcome, plan_llama_cpp
from trimtab.units import GIB, MIB

# SmolLM2-135M-Instruct Q4_1 as the header reader gives it.
SMOL = GgufCheckpoint(
    path="/models/smol.gguf",
    name="smol",
    architecture="llama",
    file_bytes=98_362_432,
    weights_bytes=96_576_768,
    num_tensors=272,
    num_layers=30,
    embedding_length=576,
    feed_forward_length=1536,
    vocab_size=49152,
    trained_context_tokens=8192,
    num_heads=9,
    kv_heads_per_layer=(3,) * 30,
    key_head_dim=64,
    value_head_dim=64,
    quantization="Q4_1",
    has_chat_template=True,
    bytes_by_tensor_type=(("Q4_1", 66_355_200), ("Q8_0", 30_081_024), ("F32", 140_544)),
    token_embedding_bytes=30_081_024,
    token_embedding_type="Q8_0",
    has_output_head=False,
)
HOST = Host(total_ram_bytes=16 * GIB, available_ram_bytes=12 * GIB, physical_cores=6, logical_cores=12)


def _plan(
    *,
    free: int = HOST.available_ram_bytes,
    ram: int | None = None,
    reserved: int = 0,
    checkpoint: GgufCheckpoint = SMOL,
    context: int | None = None,
    concurrency: int | None = None,
    version: str = REQUIRED_XLLAMACPP,
    **pins: SettingValue,
) -> LlamaCppOutcome:
    request = ModelRequest(
        name="smol",
        checkpoint="smol.gguf",
        context=context,
        concurrency=concurrency,
        engine_args=tuple(pins.items()),
    )
    return plan_llama_cpp(
        request,
        checkpoint,
        replace(HOST, available_ram_bytes=free),
        ram_bytes=ram,
        python="/venv/python",
        engine_version=version,
        reserved_bytes=reserved,
    )


def _values(model: ModelPlan) -> dict[str, SettingValue]:
    return {setting.name: setting.value for setting in model.settings}


def _budget(model: ModelPlan) -> HostBudget:
    budget = model.replicas[0].host
    assert budget is not None
    return budget


def test_default_is_the_trained_context_in_four_slots_on_the_real_cores():
    """Without any wish the model runs with all the context that it knows, four requests at once."""
    model = _plan().model
    values = _values(model)
    assert (model.fits, model.max_model_len, model.replicas[0].max_concurrency) == (True, 8192, 4.0)
    assert (values["n_ctx"], values["n_parallel"], values["n_threads"]) == (32768, 4, 6)
    assert model.replicas[0].kv_cache_tokens == 32768
    assert _budget(model).kv_cache_bytes == 720 * MIB


def test_every_setting_says_where_it_comes_from():
    """`plan --explain` has a reason for each value, and the command carries exactly these values."""
    model = _plan(context=2048, n_threads=1).model
    origins = {setting.name: setting.origin for setting in model.settings}
    assert (origins["n_ctx"], origins["n_threads"], origins["n_parallel"]) == ("asked", "pinned", "chosen")
    assert all(setting.reason for setting in model.settings)
    assert model.argv[:3] == ("/venv/python", "-m", "trimtab.runtimes.llama_cpp_host")
    assert model.argv[model.argv.index("--ctx-size") + 1] == "8192"
    assert model.argv[model.argv.index("--threads") + 1] == "1"


def test_little_ram_costs_slots_before_context():
    """On a small machine one chat keeps its whole context instead of four having a quarter each."""
    model = _plan(free=600 * MIB).model
    assert (model.fits, model.max_model_len, model.replicas[0].max_concurrency) == (True, 8192, 1.0)


def test_very_little_ram_shortens_the_context_and_says_so():
    """When the trained context does not fit, the largest that does is planned, with a warning."""
    outcome = _plan(free=300 * MIB)
    assert outcome.model.fits
    assert 512 <= outcome.model.max_model_len < 8192
    assert [warning.code for warning in outcome.model.warnings] == ["context-shortened"]
    assert "8,192 tokens in each of 1 slots need" in outcome.rejections[0].text
    budget = _budget(outcome.model)
    assert budget.requested_bytes + budget.error_bytes <= 0.8 * 300 * MIB


def test_model_that_does_not_fit_at_all_is_refused_with_figures():
    """Nothing is proposed where nothing helps; the figures say how much is missing."""
    outcome = _plan(free=150 * MIB)
    assert not outcome.model.fits
    assert outcome.nearest_fit == ()
    assert "a smaller model or more RAM is needed" in outcome.rejections[0].text
    assert "150.0 MiB are free" in outcome.rejections[0].text


def test_misfit_keeps_the_wish_and_offers_single_changes():
    """The refused plan is complete, and each proposal names one thing to change."""
    outcome = _plan(free=600 * MIB, context=8192, concurrency=4)
    assert not outcome.model.fits
    assert (outcome.model.max_model_len, _values(outcome.model)["n_ctx"]) == (8192, 32768)
    assert outcome.model.argv
    changes = [dict(change.change) for change in outcome.nearest_fit]
    assert changes == [
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"concurrency": 2},
        {"context": 4608},
    ]
    assert "concurrency 2 instead of 4" in outcome.nearest_fit[1].text


def test_cap_of_the_stack_is_the_first_thing_to_change():
    """Where only the stack's own `ram` is in the way, raising it is proposed first."""
    outcome = _plan(ram=600 * MIB, context=8192, concurrency=4)
    assert not outcome.model.fits
    assert dict(outcome.nearest_fit[0].change) == {"ram": "930MiB"}
    assert "the stack's ram is 600.0 MiB" in outcome.rejections[0].text


def test_pinned_pool_is_changed_by_its_own_name():
    """A proposal against a pinned n_ctx says which n_ctx would fit."""
    outcome = _plan(free=600 * MIB, n_ctx=32768, n_parallel=4)
    assert not outcome.model.fits
    changes = [dict(change.change) for change in outcome.nearest_fit]
    assert {"n_ctx": 4608 * 4} in changes
    assert {"n_parallel": 2, "n_ctx": 16384} in changes


def test_combined_changes_are_the_last_resort():
    """Only where no single change is enough, two are proposed together."""
    outcome = _plan(free=230 * MIB, context=8192, concurrency=16, cache_ram_mib=100)
    assert not outcome.model.fits
    assert outcome.nearest_fit == ()
    outcome = _plan(free=230 * MIB, context=8192, concurrency=32)
    assert outcome.nearest_fit
    assert all(len(change.change) > 1 for change in outcome.nearest_fit)


def test_models_planned_earlier_leave_less():
    """The second model of a stack gets what the first has left."""
    outcome = _plan(context=8192, concurrency=4, free=2 * GIB, reserved=GIB + 512 * MIB)
    assert not outcome.model.fits
    assert "models before it take 1.5 GiB" in outcome.rejections[0].text


def test_prompt_cache_is_bounded_by_what_is_left():
    """llama.cpp's cache of old prompts gets a size that the machine can bear, or none."""
    assert _values(_plan().model)["cache_ram_mib"] == 720
    tight = _plan(free=1000 * MIB, context=8192, concurrency=4).model
    assert _values(tight)["cache_ram_mib"] == 0
    pinned = _plan(cache_ram_mib=64).model
    assert _budget(pinned).prompt_cache_bytes == 64 * MIB
    huge = _plan(cache_ram_mib=50_000)
    assert not huge.model.fits
    assert ("cache_ram_mib", 0) in huge.nearest_fit[0].change


def test_context_is_rounded_up_to_what_the_engine_reserves():
    """Asking for 1,000 tokens gives the 1,024 that llama.cpp really serves, and the plan says so."""
    model = _plan(context=1000, concurrency=3).model
    assert (model.max_model_len, _values(model)["n_ctx"]) == (1024, 3072)
    assert "1,000 asked, rounded up" in model.settings[0].reason


def test_context_beyond_the_training_is_refused():
    """A context that the model was not trained for is refused with the trained length."""
    with pytest.raises(StackFileError, match=r"models\.smol\.context: 10,000 .* 8,192") as caught:
        _plan(context=10_000)
    assert "rope_scaling_type=yarn" in caught.value.hint


def test_yarn_stretches_the_trained_context():
    """With YaRN pinned the stretched length may be asked for."""
    model = _plan(context=20_000, rope_scaling_type="yarn", rope_freq_scale=0.25, yarn_orig_ctx=8192).model
    assert model.fits
    assert model.max_model_len == 20_224
    with pytest.raises(StackFileError, match="more than the 8,192"):
        _plan(context=20_000, rope_scaling_type="linear", rope_freq_scale=0.25)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        pytest.param({"context": 0}, "context: 0 is not a positive number", id="zero-context"),
        pytest.param({"context": -5}, "context: -5 is not a positive number", id="negative-context"),
        pytest.param({"concurrency": 0}, "concurrency: 0 is not a positive", id="zero-concurrency"),
        pytest.param({"concurrency": 300}, "more than the 256 slots", id="too-many-slots"),
        pytest.param(
            {"context": 4096, "concurrency": 4, "n_ctx": 4096},
            "n_ctx 4,096 is shared by 4 slots and cannot hold 4,096",
            id="pool-too-small",
        ),
        pytest.param({"concurrency": 4, "n_parallel": 2}, "concurrency 4 contradicts", id="two-slot-counts"),
        pytest.param({"n_ctx": 100_000}, "more than the 8,192 per request", id="pool-beyond-training"),
        pytest.param({"n_batch": 256, "n_ubatch": 512}, "512 is more than n_batch 256", id="batches"),
        pytest.param(
            {"cache_type_v": "q8_0", "flash_attn": "off"},
            "needs flash attention",
            id="quantised-v-without-flash",
        ),
        pytest.param({"n_thread": 2}, "has no setting 'n_thread'", id="unknown-setting"),
        pytest.param({"n_threads": "two"}, "'two' is not a whole number", id="wrong-type"),
    ],
)
def test_contradictory_or_illegal_wish_is_refused_before_anything_starts(wish: dict[str, int], says: str):
    """A wish that cannot be obeyed is answered with where it stands and the figures."""
    with pytest.raises(StackFileError, match=says) as caught:
        _plan(**wish)  # type: ignore[arg-type]
    assert "models.smol" in caught.value.message


def test_quantised_cache_needs_heads_that_can_be_packed():
    """A cache type that this model cannot use is refused, and never proposed."""
    odd = replace(SMOL, key_head_dim=80, value_head_dim=80)
    with pytest.raises(StackFileError, match="packs 32 values together"):
        _plan(checkpoint=odd, cache_type_k="q8_0")
    outcome = _plan(checkpoint=odd, free=600 * MIB, context=8192, concurrency=4)
    assert all("cache_type_k" not in dict(change.change) for change in outcome.nearest_fit)


def test_pinned_pool_is_shared_by_as_many_slots_as_are_useful():
    """Pinning n_ctx alone gives each slot a usual context, or the whole pool to one."""
    assert [
        (model.max_model_len, model.replicas[0].max_concurrency)
        for model in (_plan(n_ctx=size).model for size in (4096, 16384, 32768))
    ] == [(4096, 1.0), (8192, 2.0), (8192, 4.0)]


def test_unified_cache_lets_one_request_use_the_pool():
    """With kv_unified a request may use the whole pool, up to the trained length."""
    model = _plan(n_ctx=4096, n_parallel=4, kv_unified=True).model
    assert (model.max_model_len, model.replicas[0].kv_cache_tokens) == (4096, 4096)


def test_repacked_weights_are_not_mapped():
    """A Q4_0 model is loaded so that its weights are in RAM once, not twice."""
    repacked = replace(SMOL, bytes_by_tensor_type=(("Q4_0", SMOL.weights_bytes),))
    assert _values(_plan(checkpoint=repacked).model)["load_mode"] == "none"
    assert _values(_plan().model)["load_mode"] == "mmap"
    mapped = _plan(checkpoint=repacked, load_mode="mmap").model
    assert _budget(mapped).weights_bytes == 2 * SMOL.weights_bytes


def test_embedding_model_is_started_for_embeddings():
    """An embedding model answers /v1/embeddings without a flag, inputs as long as its context."""
    model = _plan(checkpoint=replace(SMOL, architecture="bert", is_embedding_only=True)).model
    values = _values(model)
    assert (values["embeddings"], values["n_ubatch"], model.max_model_len) == (True, 2048, 2048)
    assert "--embeddings" in model.argv


@pytest.mark.parametrize(
    ("has_pooling", "pins", "pooling"),
    [(False, {}, "mean"), (True, {}, None), (False, {"pooling": "last"}, "last")],
    ids=["unnamed", "named", "pinned"],
)
def test_embeddings_are_pooled(has_pooling, pins, pooling):
    """llama.cpp embeds no text without a pooling: where neither file nor pin names one, mean is added."""
    model = _plan(checkpoint=replace(SMOL, has_pooling=has_pooling), embeddings=True, **pins).model
    assert _values(model).get("pooling") == pooling
    assert ("--pooling" in model.argv) == (pooling is not None)


@pytest.mark.parametrize(
    ("checkpoint", "version", "code"),
    [
        pytest.param(
            replace(SMOL, has_chat_template=False), REQUIRED_XLLAMACPP, "no-chat-template", id="chat"
        ),
        pytest.param(SMOL, "2027.1.1", "engine-version", id="version"),
        pytest.param(
            replace(SMOL, architecture="phi3", sliding_window_tokens=512),
            REQUIRED_XLLAMACPP,
            "kv-cache-upper-bound",
            id="unknown-window",
        ),
        pytest.param(
            replace(SMOL, has_recurrent_layers=True),
            REQUIRED_XLLAMACPP,
            "kv-cache-upper-bound",
            id="recurrent",
        ),
    ],
)
def test_what_is_uncertain_is_said(checkpoint: GgufCheckpoint, version: str, code: str):
    """A plan that rests on less than it should says so."""
    model = _plan(checkpoint=checkpoint, version=version).model
    assert [warning.code for warning in model.warnings] == [code]
