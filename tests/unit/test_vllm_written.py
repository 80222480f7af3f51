"""Launch commands as somebody wrote them: the engine's defaults, each flag's price, what would change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wishes import DENSE_AWQ, MOE_AWQ, MOE_FP8, known, wish

from trimtab.core.hardware import Host, Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.stack import ModelRequest, Stack
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.stack_plan import World, check_written
from trimtab.planner.vllm_written import judge_as_written

GIB = 1 << 30
SEED = {
    "tensor_parallel_size": 4,
    "max_model_len": 262144,
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8192,
    "language_model_only": True,
    "enable_prefix_caching": True,
}
HOST = Host(total_ram_bytes=64 * GIB, available_ram_bytes=60 * GIB, physical_cores=8, logical_cores=16)


def check(gpus: str, *models: tuple[str, dict, str | None]):
    """The judgement of models as (repository, flags, card numbers)."""
    requests, sources = [], []
    for at, (repo, flags, cards) in enumerate(models):
        requests.append(
            ModelRequest(
                name=f"m{at}",
                checkpoint=repo,
                engine_version="0.17.1",
                gpus=cards,
                engine_args=tuple(flags.items()),
            )
        )
        facts, parts = known(repo)
        sources.append(
            ModelSource(checkpoint=repo, facts=facts, parts=parts, origin="built in", mask_origin="config")
        )
    world = World(
        inventory=Inventory(host=HOST, gpus=decode_gpu_spec(gpus)), python="python", llama_cpp_version=""
    )
    return check_written(Stack(name="s", models=tuple(requests)), tuple(sources), world)


def test_the_seed_script_fits_as_written() -> None:
    """The user's first deployment: it starts, and its flags are those of the script, not ours."""
    made = check("4xrtx4090", (MOE_FP8, SEED, "0,1,2,3"))

    model = made.plan.models[0]
    assert made.plan.fits
    assert {item.name: item.value for item in model.settings} == SEED
    assert model.replicas[0].per_gpu[0].requested_bytes == pytest.approx(0.9 * 23.52 * GIB, rel=0.001)


def test_what_is_left_out_has_the_engines_default_and_not_the_planners() -> None:
    """max_num_seqs 256 and one card, as vLLM 0.17 would take them."""
    made = check("2xrtx4090", ("Qwen/Qwen3-4B", {}, None))

    found = {item.name: (item.value, item.origin) for item in made.plan.models[0].settings}
    assert found["max_num_seqs"] == (256, "default")
    assert found["tensor_parallel_size"] == (1, "default")
    assert found["gpu_memory_utilization"] == (0.9, "default")
    assert made.plan.models[0].replicas[0].gpus == (0,)
    assert made.plan.idle_gpus == (1,)
    assert "--max-num-seqs" not in made.plan.models[0].argv


def test_every_flag_that_moves_the_cache_has_its_price() -> None:
    """Batch and sequences in bytes, the cache's dtype in tokens, the share of the card in both."""
    made = check("4xrtx4090", (MOE_FP8, SEED | {"gpu_memory_utilization": 0.8}, "0,1,2,3"))

    costs = {cost.name: cost for cost in made.costs}
    assert costs["max_num_batched_tokens"].kv_cache_bytes < 0
    assert costs["max_num_seqs"].kv_cache_bytes > 0
    assert costs["kv_cache_dtype"].kv_cache_bytes == 0
    assert costs["kv_cache_dtype"].kv_cache_tokens > 100_000
    assert costs["gpu_memory_utilization"].kv_cache_bytes == pytest.approx(-0.1 * 23.52 * GIB, rel=0.01)
    assert costs["language_model_only"].kv_cache_bytes > 0
    assert "max_model_len" not in costs or costs["max_model_len"].kv_cache_bytes == 0


def test_the_planners_own_plan_stands_beside_it() -> None:
    """Same context, same sequences: what it would take instead, and why."""
    made = check("4xrtx4090", (MOE_FP8, SEED, "0,1,2,3"))

    changes = {change.name: change for change in made.changes}
    assert made.proposal is not None
    assert made.proposal.fits
    assert made.proposal.models[0].max_model_len == 262144
    assert changes["kv_cache_dtype"].written == "fp8"
    assert all(change.reason for change in made.changes)


def test_two_containers_on_one_card_start_in_turn() -> None:
    """The second one finds only what the first one left, and says so."""
    flags = {"max_model_len": 8192, "max_num_seqs": 4, "gpu_memory_utilization": 0.6}
    made = check("1xrtx4090", ("Qwen/Qwen3-4B", flags, "0"), ("Qwen/Qwen3-0.6B", flags, "0"))

    assert [model.fits for model in made.plan.models] == [True, False]
    assert "are free" in made.plan.rejections[0].text
    assert made.proposal is not None


def test_two_models_side_by_side_are_judged_on_their_own_cards() -> None:
    """The second deployment: two cards each."""
    flags = SEED | {"tensor_parallel_size": 2, "max_num_seqs": 8}
    made = check("4xrtx4090", (MOE_AWQ, flags, "0,1"), (DENSE_AWQ, flags, "2,3"))

    assert made.plan.fits
    assert [model.replicas[0].gpus for model in made.plan.models] == [(0, 1), (2, 3)]


def test_more_ranks_than_cards_is_judged_and_not_a_crash() -> None:
    """TP4 on two cards: refused with the number of cards there are."""
    placed = judge_as_written((wish(MOE_FP8, engine_args=SEED),), decode_gpu_spec("2xrtx4090"))

    best = placed.rankings[0].best
    assert not best.fits
    assert best.problems[0].code == "too_few_cards"


def test_a_written_plan_leaves_other_processes_their_memory() -> None:
    """Free memory below the share stops the start."""
    card = replace(decode_gpu_spec("1xrtx4090")[0], free_bytes=10 * GIB)
    placed = judge_as_written((wish("Qwen/Qwen3-4B", context=8192),), (card,))

    assert not placed.rankings[0].best.fits


def test_of_a_plan_that_does_not_fit_each_flag_is_measured_by_what_is_missing() -> None:
    """Of every flag it would be true that the model does not fit without it, and no help."""
    flags = SEED | {"tensor_parallel_size": 1, "enable_chunked_prefill": True}
    made = check("1xrtx4090", (MOE_FP8, flags, "0"))

    assert not made.plan.fits
    assert made.costs
    assert not any("without it" in cost.text for cost in made.costs if cost.name != "tensor_parallel_size")
    texts = {cost.name: cost.text for cost in made.costs}
    assert made.proposal is None
    assert made.changes == ()
    assert "further from fitting" in texts["max_num_batched_tokens"]
    assert "nearer to fitting" in texts["max_num_seqs"]


def test_flags_that_move_nothing_have_no_row() -> None:
    """A table of zeros hides the rows that matter."""
    made = check("4xrtx4090", (MOE_FP8, SEED, "0,1,2,3"))

    for cost in made.costs:
        if cost.name == "tensor_parallel_size":
            continue
        assert cost.kv_cache_bytes or cost.kv_cache_tokens or cost.max_concurrency, cost


def test_only_what_the_planner_decides_is_a_change_and_defaults_are_called_so() -> None:
    """enable_chunked_prefill is nobody's business; what was not written is vLLM's default, with its value."""
    flags = {"max_model_len": 8192, "enable_chunked_prefill": True, "swap_space": 0, "enforce_eager": True}
    made = check("1xrtx4090", ("Qwen/Qwen3-4B", flags, None))

    changes = {change.name: change for change in made.changes}
    assert not {"enable_chunked_prefill", "swap_space", "max_model_len"} & set(changes)
    assert changes["enforce_eager"].reason == "CUDA graphs and compilation fit, and make tokens faster"
    assert (changes["max_num_batched_tokens"].written, changes["max_num_batched_tokens"].is_default) == (
        2048,
        True,
    )
    assert not changes["enforce_eager"].is_default


def test_a_cap_on_sequences_is_no_wish_for_as_many_long_requests() -> None:
    """64 short chats of a model that holds three long ones: its cache keeps its own dtype."""
    flags = {"max_model_len": 32768, "max_num_seqs": 64}
    made = check("1xrtx4090", ("Qwen/Qwen3-4B", flags, None))

    assert made.plan.models[0].replicas[0].max_concurrency < 4
    assert not {"max_num_seqs", "kv_cache_dtype"} & {change.name for change in made.changes}
    assert made.proposal is not None
    assert "--max-num-seqs" in made.proposal.models[0].argv


def test_how_shared_room_is_split_is_no_fault() -> None:
    """Two models on one card, each with all the requests it admits: other shares would serve nobody."""
    flags = {"max_model_len": 4096, "max_num_seqs": 4, "max_num_batched_tokens": 2048}
    made = check(
        "1xh200",
        ("Qwen/Qwen3-4B", flags | {"gpu_memory_utilization": 0.3}, "0"),
        ("Qwen/Qwen3-0.6B", flags | {"gpu_memory_utilization": 0.6}, "0"),
    )

    assert made.plan.fits
    assert "gpu_memory_utilization" not in {change.name for change in made.changes}
