"""One start of real vLLM with dummy weights, a long prompt, and (where asked for) its speed.

    python start_once.py MODEL_FOLDER ARGS_JSON          (PROBE_FOLDER: where notes go)

Speed is only taken while the coordinator holds every other start still: this process writes
``speed-ready`` and waits for ``speed-go``.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["PROBE_FOLDER"])
SPEED = [(1, 512, 64), (4, 512, 64), (16, 512, 48), (1, 8192, 16)]


def note(**values: object) -> None:
    path = FOLDER / "notes.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | values))


def main() -> None:
    model, args = sys.argv[1], json.loads(sys.argv[2])
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    started = time.time()
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    has_tokenizer = (Path(model) / "tokenizer.json").exists()
    llm = LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=not has_tokenizer,
        worker_cls="probed_worker.ProbedWorker",
        **args,
    )
    config = llm.llm_engine.vllm_config
    note(
        vllm=vllm.__version__,
        torch=torch.__version__,
        start_seconds=round(time.time() - started, 1),
        num_gpu_blocks=config.cache_config.num_gpu_blocks,
        block_size=config.cache_config.block_size,
        max_model_len=config.model_config.max_model_len,
        resolved={
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "mamba_cache_mode": config.cache_config.mamba_cache_mode,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "capture_sizes": config.compilation_config.cudagraph_capture_sizes,
        },
    )
    if args.get("tensor_parallel_size", 1) == 1:
        run_long_prompt(llm, SamplingParams, config)
        if os.environ.get("PROBE_SPEED") == "1":
            measure_speed(llm, SamplingParams, config)
    note(done=True)


def ask(llm: object, params: object, count: int, length: int, out: int, salt: int) -> float:
    """Seconds for ``count`` prompts of ``length`` random-looking tokens and ``out`` new ones each."""
    prompts = [
        {
            "prompt_token_ids": [
                (7919 * (index + 1) + 104729 * (one + salt)) % 32000 for index in range(length)
            ]
        }
        for one in range(count)
    ]
    began = time.time()
    llm.generate(
        prompts,
        params(max_tokens=out, min_tokens=out, ignore_eos=True, temperature=0.0, detokenize=False),
        use_tqdm=False,
    )
    return time.time() - began


def run_long_prompt(llm: object, params: object, config: object) -> None:
    """A prompt as long as the context (32k at most; until 2026-11-30 32,000): what the card holds afterwards is the run-time peak."""
    import torch
    from probed_worker import read_own_bytes

    length = min(config.model_config.max_model_len - 16, 32752)
    torch.cuda.reset_peak_memory_stats()
    seconds = ask(llm, params, 1, length, 4, 1)
    note(
        long_prompt={
            "tokens": length,
            "seconds_shared_card": round(seconds, 3),
            "own_bytes": read_own_bytes(),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.memory_reserved(),
        }
    )


def measure_speed(llm: object, params: object, config: object) -> None:
    """Batches one after the other with the card to itself: first token and time per output token."""
    (FOLDER / "speed-ready").touch()
    deadline = time.time() + 120
    while not (FOLDER / "speed-go").exists():
        if time.time() > deadline:
            return
        time.sleep(0.05)
    rows = []
    for salt, (count, length, out) in enumerate(SPEED, start=2):
        if count > config.scheduler_config.max_num_seqs:
            continue
        ask(llm, params, count, 64, 4, 50 * salt)
        first = ask(llm, params, count, length, 1, 100 * salt)
        whole = ask(llm, params, count, length, out, 1000 * salt)
        rows.append(
            {
                "bs": count,
                "in": length,
                "out": out,
                "ttft_batch_s": round(first, 4),
                "total_s": round(whole, 4),
                "tpot_ms": round((whole - first) / (out - 1) * 1e3, 3),
            }
        )
    note(speed=rows)
    (FOLDER / "speed-done").touch()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
