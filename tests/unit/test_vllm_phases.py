"""What a boot's log tells: phases in order, progress, and the engine's own figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engines.vllm_phases import BootFacts, BootPhase, BootState, follow_boot, read_boot

# Lines as the log formats of vLLM's sources give them (Apache-2.0), with figures from published logs;
# the 0.32 lines are from a start of the CPU build on 2026-11-30.
WORKER = "(Worker_TP0 pid=11) INFO 11-30 08:47:56 [gpu_model_runner.py:4801] "
LOGS = {
    "0.17 on a GPU": (
        ("(EngineCore pid=9) Initializing a V1 LLM engine (v0.17.1) with config: model='x'", "import"),
        ("model-00001-of-00014.safetensors:  42%|████▏     | 2.1G/4.9G [00:31<00:42, 66MB/s]", "download"),
        ("Time spent downloading weights for Qwen/Qwen3.5-27B-FP8: 61.200000 seconds", "load"),
        ("Loading safetensors checkpoint shards:  20% Completed | 1/5 [00:01<00:05,  1.3s/it]", "load"),
        (f"{WORKER}Model loading took 27.66 GiB memory and 7.613000 seconds", "load"),
        (
            f"{WORKER}Using cache directory: /cache/torch_compile_cache/ab for vLLM's torch.compile",
            "compile",
        ),
        (f"{WORKER}Dynamo bytecode transform time: 9.10 s", "compile"),
        (f"{WORKER}torch.compile takes 31.25 s in total", "profile"),
        (f"{WORKER}Available KV cache memory: 5.98 GiB", "profile"),
        ("INFO [kv_cache_utils.py:1314] GPU KV cache size: 141,992 tokens", "profile"),
        ("INFO Maximum concurrency for 131,072 tokens per request: 4.33x", "profile"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█ | 5/51 [00:01<00:09]", "graphs"),
        (f"{WORKER}Graph capturing finished in 12 secs, took 0.55 GiB", "warm-up"),
        ("init engine (profile, create kv cache, warmup model) took 58.21 seconds", "warm-up"),
        ("INFO:     Application startup complete.", "ready"),
    ),
    "0.25 on a GPU": (
        (f"{WORKER}Starting to load model Qwen/Qwen3.5-35B-A3B-FP8...", "load"),
        (f"{WORKER}Model loading took 33.38 GiB and 12.100000 seconds", "load"),
        (f"{WORKER}torch.compile took 20.50 s in total", "profile"),
        (
            f"{WORKER}Profiling CUDA graph memory: FULL=35 (largest=256), PIECEWISE=51 (largest=512)",
            "profile",
        ),
        (f"{WORKER}Estimated CUDA graph memory: 1.21 GiB total", "profile"),
        ("GPU KV cache size: 567,978 tokens", "profile"),
        ("Capturing CUDA graphs (decode, FULL): 100%|██████████| 35/35 [00:02<00:00, 14.5it/s]", "graphs"),
        (
            "init engine (profile, create kv cache, warmup model) took 41.00 s (compilation: 20.50 s)",
            "warm-up",
        ),
    ),
    "0.32 on a CPU": (
        ("(Worker pid=3) INFO [cpu_model_runner.py:68] Starting to load model m/moe...", "load"),
        ("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 57.68it/s]", "load"),
        ("(Worker pid=3) INFO [default_loader.py:501] Loading weights took 0.02 seconds", "load"),
        ("INFO Setting attention block size to 640 tokens to ensure that attention page size is", "load"),
        (
            "CPU KV cache size: 670,924 tokens, Maximum concurrency for 2,048 tokens per request: 327.60x",
            "profile",
        ),
        ("INFO init engine (profile, create kv cache, warmup model) took 2.97 s", "warm-up"),
        ("INFO:     Application startup complete.", "ready"),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_each_line_moves_the_boot_to_its_phase(name):
    """The progress shows what the engine is doing, on every version that is planned for."""
    state = BootState()
    for line, phase in LOGS[name]:
        state = follow_boot(state, line)
        assert state.phase == phase, line


def test_figures_of_a_start_are_read():
    """What the engine measured can be set beside what was predicted."""
    facts = read_boot(line for line, _ in LOGS["0.17 on a GPU"]).facts

    assert facts == BootFacts(
        engine_version="0.17.1",
        weights_gib=27.66,
        compile_s=31.25,
        available_kv_gib=5.98,
        kv_cache_tokens=141_992,
        max_concurrency=4.33,
        tokens_per_request=131_072,
        graph_gib=0.55,
        graph_s=12,
        init_s=58.21,
    )


def test_the_wordings_of_newer_versions_are_read():
    """One line or two, with or without the word memory: the figures are the same."""
    new = read_boot(line for line, _ in LOGS["0.25 on a GPU"]).facts
    cpu = read_boot(line for line, _ in LOGS["0.32 on a CPU"]).facts

    assert (new.weights_gib, new.estimated_graph_gib, new.compile_s, new.init_s) == (33.38, 1.21, 20.5, 41)
    assert (cpu.kv_cache_tokens, cpu.max_concurrency, cpu.tokens_per_request) == (670_924, 327.6, 2048)
    assert (cpu.attention_block_tokens, cpu.load_s) == (640, 0.02)


def test_steps_of_a_phase_are_counted():
    """A long load or capture shows how far it is; the last rewrite of a bar counts."""
    loading = follow_boot(BootState(), "Loading safetensors checkpoint shards:  20% Completed | 1/5 [00:01<")
    bar = "Capturing CUDA graphs (decode, FULL):  3%|▎ | 1/35 [00:0\rCapturing CUDA graphs: 6%| | 2/35 [00:1"
    capturing = follow_boot(loading, bar)

    assert (loading.done, loading.total) == (1, 5)
    assert (capturing.done, capturing.total) == (2, 35)
    assert follow_boot(capturing, "Graph capturing finished in 3 secs, took 0.1 GiB").total is None


def test_the_worst_worker_decides():
    """With tensor parallelism the fullest card's figures are shown."""
    facts = read_boot(
        (
            "Model loading took 9.36 GiB memory and 1.0 seconds",
            "Model loading took 9.10 GiB memory and 1.0 seconds",
            "Available KV cache memory: 5.00 GiB",
            "Available KV cache memory: 4.20 GiB",
        )
    ).facts

    assert (facts.weights_gib, facts.available_kv_gib) == (9.36, 4.2)


def test_a_fitted_length_is_told():
    """When the engine itself shortens the context, that is known."""
    line = "Auto-fit max_model_len: reduced from 262144 to 152880 to fit in available GPU memory (9.5 GiB"

    assert read_boot((line,)).facts.fitted_max_model_len == 152_880


def _torn(line: str) -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, len(line)), st.text(max_size=8)).map(
        lambda cut: line[: cut[0]] + cut[1] + line[cut[0] :]
    )


KNOWN = [line for log in LOGS.values() for line, _ in log]


@given(st.lists(st.one_of(st.text(), st.sampled_from(KNOWN), st.sampled_from(KNOWN).flatmap(_torn))))
def test_no_text_breaks_it_and_no_boot_goes_back(lines):
    """Whatever an engine prints, the display goes on, forwards only."""
    order = list(BootPhase)
    state = BootState()
    for line in lines:
        following = follow_boot(state, line)
        assert order.index(following.phase) >= order.index(state.phase)
        assert (following.done is None) == (following.total is None)
        state = following
