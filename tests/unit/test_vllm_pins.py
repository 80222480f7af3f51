"""Pinned arguments that no start survives, or that the account cannot follow; none is planned in silence."""

from __future__ import annotations

import pytest
from wishes import DENSE_AWQ, DENSE_FP8, codes, plan, wish

from trimtab.errors import StackFileError


@pytest.mark.parametrize(
    ("pins", "code", "legal"),
    [
        pytest.param({"num_gpu_blocks_override": 2_000_000}, "blocks_exceed_memory", None, id="blocks"),
        pytest.param({"decode_context_parallel_size": 7}, "context_parallel", 1, id="context-parallel"),
        pytest.param({"data_parallel_size": 9}, "too_few_cards", 2, id="data-parallel"),
        pytest.param({"attention_backend": "FOO"}, "no_such_backend", None, id="backend"),
        pytest.param({"quantization": "awq"}, "quantization_mismatch", "fp8", id="quantization"),
        pytest.param({"tensor_parallel_size": 1000}, "too_few_cards", 2, id="degree"),
    ],
)
def test_what_no_start_survives_is_refused_with_a_legal_value(pins, code, legal) -> None:
    """Never "fits", and where a value would do it is proposed."""
    outcome = plan("2xh200", wish(DENSE_FP8, engine_args=pins))

    assert not outcome.fits
    assert code in codes(outcome)
    if legal is not None:
        assert any(dict(change.change).get(next(iter(pins))) == legal for change in outcome.nearest_fit)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        pytest.param({"max_model_len": 10**30}, "2,147,483,648 or less", id="length"),
        pytest.param({"max_num_seqs": 1e30}, "or less", id="sequences"),
        pytest.param({"max_num_seqs": float("inf")}, "whole number", id="infinite"),
        pytest.param({"data_parallel_size": 10**12}, "1,024 or less", id="data-parallel"),
        pytest.param({"tensor_parallel_size": 10**20}, "1,024 or less", id="tensor-parallel"),
        pytest.param({"compilation_config": "[" * 20_000}, "isn't JSON", id="deep-list"),
        pytest.param({"compilation_config": '{"a":' * 5_000}, "isn't JSON", id="deep-mapping"),
        pytest.param({"compilation_config": '{"mode": 99}'}, "expected 0 to 3", id="mode"),
        pytest.param({"compilation_config": '{"cudagraph_mode": 5}'}, "expected one of", id="graphs"),
        pytest.param({"speculative_config": '{"method": "foo"}'}, "expected mtp", id="method"),
        pytest.param({"speculative_config": '{"model": "/etc/passwd"}'}, "draft model", id="draft"),
        pytest.param({"speculative_config": '{"method": "mtp"}'}, "num_speculative_tokens", id="no-depth"),
    ],
)
def test_absurd_values_get_one_sentence_with_the_limit(pins, words) -> None:
    """No traceback, no long wait, no value of 20,000 characters on the screen."""
    with pytest.raises(StackFileError, match=words) as caught:
        plan("2xh200", wish(DENSE_FP8, engine_args=pins))

    assert len(caught.value.message) < 300


def test_what_the_account_does_not_follow_is_said() -> None:
    """Offloading, overrides and adapters are planned with a warning each."""
    pins = {"cpu_offload_gb": 4, "hf_overrides": '{"a": 1}', "enable_lora": True}
    outcome = plan("2xh200", wish(DENSE_FP8, engine_args=pins))

    texts = [warning.text for warning in outcome.models[0].warnings if warning.code == "not_modelled"]
    assert len(texts) == 3
    assert not any(
        warning.code == "not_modelled"
        for warning in plan("2xh200", wish(DENSE_FP8, engine_args={"enable_lora": False})).models[0].warnings
    )


def test_thirty_models_are_planned_or_refused_in_a_moment() -> None:
    """Enough cards: each gets its own; too few: refused, and quickly."""
    wishes = [wish("Qwen/Qwen3-8B", name=f"m{number}") for number in range(30)]

    assert plan("64xl40s", *wishes).fits
    crowded = plan("4xrtx4090", *wishes)
    assert not crowded.fits
    assert crowded.placement.num_candidates < 3_000


def warnings_of(outcome) -> dict[str, str]:
    return {item.code: item.text for item in outcome.models[0].warnings}


def test_awq_is_no_name_for_compressed_tensors() -> None:
    """A method is taken only where it is the checkpoint's own; what compressed-tensors made is not AWQ's."""
    wrong = plan("2xrtx4090", wish(DENSE_AWQ, engine_args={"quantization": "awq"}))
    right = plan("2xrtx4090", wish(DENSE_AWQ, engine_args={"quantization": "compressed-tensors"}))

    assert not wrong.models[0].fits
    assert "quantization_mismatch" in codes(wrong)
    assert right.models[0].fits


def test_a_parser_of_another_family_is_told() -> None:
    """Qwen3.5 writes its calls in XML; hermes, which Qwen3 wants, finds none of them."""
    pinned = {
        name: wish(DENSE_FP8, engine_args={"tool_call_parser": name}) for name in ("hermes", "qwen3_xml")
    }

    assert "qwen3_coder is" in warnings_of(plan("1xh200", pinned["hermes"]))["foreign_parser"]
    assert "foreign_parser" not in warnings_of(plan("1xh200", pinned["qwen3_xml"]))
    assert "foreign_parser" not in warnings_of(plan("1xh200", wish(DENSE_FP8)))


def test_what_is_given_up_for_room_is_told() -> None:
    """A chat of 200,000 tokens computes all of them at each turn once prefix caching is off."""
    tight = plan("1xrtx5090", wish(DENSE_AWQ, context=262144))
    roomy = plan("1xh200", wish(DENSE_AWQ, context=262144))
    asked = plan("1xh200", wish(DENSE_AWQ, context=262144, engine_args={"enable_prefix_caching": False}))

    assert "enable_prefix_caching: true keeps it" in warnings_of(tight)["no_prefix_caching"]
    assert "no_prefix_caching" not in warnings_of(roomy)
    assert "no_prefix_caching" not in warnings_of(asked)


def test_the_speed_of_eager_execution_is_told_to_be_another() -> None:
    """Figures are of compiled graphs, on which they were fitted."""
    assert "eager_speed" in warnings_of(plan("1xh200", wish(DENSE_FP8, engine_args={"enforce_eager": True})))
