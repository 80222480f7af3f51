"""The speed model: what it must say about cards and models whoever fitted it, and the user's own case."""

import time
from dataclasses import replace
from functools import cache

import pytest
from checkpoint_facts import read_config

from trimtab.core.hardware import Gpu
from trimtab.errors import MissingFactError
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.latency import SpeedCalibration, SpeedSettings, SpeedWorkload, estimate_speed
from trimtab.planner.latency_cards import card_class
from trimtab.planner.latency_profile import estimate_speed_profile
from trimtab.planner.latency_settings import make_speed_settings
from trimtab.planner.latency_table import CARD_TIMINGS
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.speed_ratios import SpeedRatio
from trimtab.planner.vllm_settings import VllmSettings

AWQ_27B = "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"
AWQ_35B = "inferred-cyankiwi-Qwen3.5-35B-A3B-AWQ-4bit"
SHORT = SpeedWorkload(input_tokens=256, output_tokens=256)


@cache
def facts_of(model):
    return decode_model_config(read_config(model))


@cache
def parts_of(model):
    return decode_parts(facts_of(model))


def speed(model, gpus, workload=SHORT, **settings):
    cards = decode_gpu_spec(gpus)
    asked = SpeedSettings(tensor_parallel_size=len(cards), **settings)
    return estimate_speed(facts_of(model), parts_of(model), asked, cards, workload)


@pytest.mark.parametrize("gpus", ["1xh100", "1xh200", "1xb200", "1xrtx3090", "1xrtx4090", "1xrtxpro6000"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3.5-9B", AWQ_27B])
def test_no_card_reads_faster_than_its_memory(model, gpus):
    """A promise above what the memory can deliver would be a lie on every card."""
    profile = estimate_speed_profile(facts_of(model), parts_of(model), SpeedSettings())
    read = profile.linear_16.weight_bytes + profile.linear_8.weight_bytes + profile.linear_4.weight_bytes
    card = decode_gpu_spec(gpus)[0]

    least_ms = (read + profile.head.weight_bytes) / card.memory_bandwidth_bytes_per_s * 1e3

    assert least_ms < speed(model, gpus).tpot_ms < 3 * least_ms + 6


def test_fewer_bits_decode_faster():
    """Quantising a checkpoint pays off in tokens per second."""
    rates = [
        speed(name, "1xh100").output_tokens_per_s_per_user for name in ("Qwen3-32B", "Qwen3-32B-FP8", AWQ_27B)
    ]

    assert rates == sorted(rates)
    assert rates[1] > 1.5 * rates[0]


def test_experts_decode_like_the_few_that_are_active():
    """A 35B model with 3B active answers one user faster than a dense 27B."""
    assert speed(AWQ_35B, "2xrtx4090").tpot_ms < 0.6 * speed(AWQ_27B, "2xrtx4090").tpot_ms


def test_more_users_touch_more_experts():
    """With experts, a crowd costs each user more than with a dense model of the same speed."""
    crowd = replace(SHORT, concurrency=16)

    def slowdown(model):
        return speed(model, "1xh200", crowd).tpot_ms / speed(model, "1xh200").tpot_ms

    assert slowdown("Qwen3-30B-A3B") > 1.5 * slowdown("Qwen3-32B")


def test_wires_matter_more_for_small_models():
    """Two cards without peer access lose time in every layer, and NVLink less."""
    times = {
        link: speed("Qwen3-32B-FP8", "4xrtx3090", interconnect=link).tpot_ms
        for link in ("nvlink", "pcie_p2p", "pcie")
    }

    assert times["nvlink"] < times["pcie_p2p"] < times["pcie"]
    assert speed("Llama-3.1-8B", "1xrtx4090").terms[4].ms == 0.0


def test_longer_prompts_take_longer_and_cached_ones_don_t():
    """First tokens under long prompts take seconds, unless the prefix is cached."""
    long = SpeedWorkload(input_tokens=60_000, output_tokens=256)
    cached = replace(long, cached_tokens=59_000)

    times = [speed("Qwen3.5-27B-FP8", "4xrtx4090", load).ttft_ms for load in (SHORT, cached, long)]

    assert times[0] < times[1] < 0.2 * times[2]


def test_users_beyond_the_slots_wait():
    """What does not fit queues, and the wait is in the first token, not in the pace."""
    load = SpeedWorkload(input_tokens=4096, output_tokens=1024, concurrency=64)
    free = speed("Qwen3-32B", "4xh100", load)
    bound = speed("Qwen3-32B", "4xh100", load, max_num_seqs=16)

    assert bound.running_sequences < 17
    assert bound.queue_ms > 20 * free.ttft_ms
    assert bound.tpot_ms < free.tpot_ms
    assert bound.output_tokens_per_s < free.output_tokens_per_s


def test_prompts_of_others_slow_the_stream():
    """With short answers, others' prompts are most of what a user waits for between tokens."""
    long = SpeedWorkload(input_tokens=4096, output_tokens=1024, concurrency=64)
    short = replace(long, output_tokens=128)

    assert speed("Qwen3-32B", "4xh100", short).tpot_ms > 2 * speed("Qwen3-32B", "4xh100", long).tpot_ms


def test_terms_add_up_for_one_user():
    """The breakdown that a plan prints is the whole step."""
    estimate = speed(AWQ_35B, "2xrtx5090")

    assert sum(term.ms for term in estimate.terms) == pytest.approx(estimate.tpot_ms, rel=0.05)


def test_the_seed_case_comes_out():
    """On four 4090s: 4-bit models answer at the rates their owner saw, FP8 ones as slowly as he said."""
    dense, sparse = (speed(name, "2xrtx4090", kv_cache_dtype="fp8") for name in (AWQ_27B, AWQ_35B))
    long = SpeedWorkload(input_tokens=60_000, output_tokens=500, concurrency=4)
    fp8 = speed("Qwen3.5-35B-A3B-FP8", "4xrtx4090", long, kv_cache_dtype="fp8", max_num_seqs=4)

    assert dense.output_tokens_per_s_per_user * (1 + dense.error_ratio) > 70
    assert 100 < sparse.output_tokens_per_s_per_user < 200
    assert 4_000 < fp8.ttft_ms < 20_000
    assert fp8.output_tokens_per_s_per_user < 60


def test_a_card_without_measurements_says_so():
    """Where nobody measured, the band is wider and the words are plain."""
    known, unknown = speed(AWQ_27B, "1xrtx3090"), speed(AWQ_27B, "1xl40s")

    assert "no measurement backs this card" in unknown.source
    assert "rows on this card" in known.source
    assert unknown.error_ratio > known.error_ratio


def test_a_calibration_replaces_what_the_table_knows():
    """After a real run, the estimate follows that run."""

    def measured(ratio: float):
        return (SpeedRatio(concurrency=1, input_tokens=SHORT.input_tokens, ratio=ratio),)

    cards = decode_gpu_spec("1xrtx3090")
    settings = SpeedSettings()
    plain = estimate_speed(facts_of("Qwen3.5-9B"), parts_of("Qwen3.5-9B"), settings, cards, SHORT)
    tuned = estimate_speed(
        facts_of("Qwen3.5-9B"),
        parts_of("Qwen3.5-9B"),
        settings,
        cards,
        SHORT,
        calibration=SpeedCalibration(ttft=measured(2.0), tpot=measured(1.5), source="tried here"),
    )

    assert tuned.tpot_ms == pytest.approx(1.5 * plain.tpot_ms)
    assert tuned.ttft_ms == pytest.approx(2.0 * plain.ttft_ms)
    assert tuned.source.startswith("tried here")


def test_speculation_is_flagged_not_priced():
    """A plan with a draft model does not promise a speed-up that depends on the text."""
    plain, drafted = (speed(AWQ_27B, "2xrtx3090", num_speculative_tokens=n) for n in (0, 3))

    assert drafted.is_speculative
    assert not plain.is_speculative
    assert drafted.tpot_ms == plain.tpot_ms


def test_an_unknown_card_is_refused_by_name():
    """A card without a bandwidth has no speed, and the message says which card."""
    card = Gpu(index=3, name="Mystery", total_bytes=24 * 2**30, compute_capability=(8, 9))

    with pytest.raises(MissingFactError, match=r"gpu 3 .Mystery.: memory bandwidth"):
        estimate_speed(facts_of("Qwen3-32B"), parts_of("Qwen3-32B"), SpeedSettings(), [card], SHORT)


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        ((8, 0), "hopper"),
        ((8, 6), "gddr6"),
        ((8, 9), "gddr6"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((12, 0), "gddr7"),
    ],
    ids=str,
)
def test_every_generation_has_fitted_figures(capability, kind):
    """No card of a known generation falls through."""
    card = Gpu(index=0, name="card", total_bytes=2**30, compute_capability=capability)

    assert card_class(card) == kind
    assert kind in CARD_TIMINGS


def test_thousands_of_candidates_cost_nothing():
    """Ranking candidates by speed stays within a fifth of a millisecond each."""
    cards = decode_gpu_spec("4xrtx4090")
    facts, parts = facts_of("Qwen3.5-35B-A3B-FP8"), parts_of("Qwen3.5-35B-A3B-FP8")
    settings = SpeedSettings(tensor_parallel_size=4)
    estimate_speed(facts, parts, settings, cards, SHORT)

    began = time.process_time()
    for users in range(1, 501):
        estimate_speed(facts, parts, settings, cards, replace(SHORT, concurrency=users))
    spent_s = time.process_time() - began

    assert spent_s / 500 < 0.2e-3


def test_the_engine_s_arguments_are_what_is_asked():
    """A plan's own arguments decide the speed it prints."""
    settings = VllmSettings(
        tensor_parallel_size=4,
        enable_expert_parallel=True,
        kv_cache_dtype="fp8",
        max_num_seqs=7,
        num_speculative_tokens=2,
    )
    made = make_speed_settings(settings, kv_cache_tokens=1234)

    assert (made.tensor_parallel_size, made.expert_parallel_size, made.max_num_seqs) == (4, 4, 7)
    assert (made.kv_cache_dtype, made.kv_cache_tokens, made.num_speculative_tokens) == ("fp8", 1234, 2)
