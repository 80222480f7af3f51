"""The matrix: which starts of real vLLM are measured, in the order of what they tell.

``model`` is a name in tests/checkpoints (config.json of a real model), ``mask`` another quantisation
block for it. ``after`` starts with the compile cache that another start filled. Shares of the card:
0.17 is a 24 GB card's budget, 0.225 a 32 GB card's.
"""

TEXT = {"language_model_only": True}
GDN = {"gdn_prefill_backend": "triton"}
CACHED = {"enable_prefix_caching": True}
FP8_KV = {"kv_cache_dtype": "fp8"}
EAGER = {"enforce_eager": True}
B27_INT4 = "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"
B35_INT4 = "inferred-cyankiwi-Qwen3.5-35B-A3B-AWQ-4bit"


def _mtp(depth: int) -> dict:
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": depth}}


def _row(
    name: str, model: str, share: float, length: int, seqs: int, tokens: int, *more: dict, **extra
) -> dict:
    args = {
        "gpu_memory_utilization": share,
        "max_model_len": length,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
    }
    for part in more:
        args |= part
    return {"id": name, "model": model, "args": args} | extra


ROWS = [
    # The first fifteen are the most telling.
    _row("27b-int4-24g-2k", B27_INT4, 0.17, 16384, 32, 2048, FP8_KV, CACHED, TEXT, GDN),
    _row("35b-fp8-mtp1-8k", "Qwen3.5-35B-A3B-FP8", 0.33, 65536, 16, 8192, FP8_KV, CACHED, TEXT, GDN, _mtp(1)),
    _row("27b-fp8-vision-8k", "Qwen3.5-27B-FP8", 0.3, 32768, 64, 8192, CACHED, GDN),
    _row("32b-fp8-8k-256", "Qwen3-32B-FP8", 0.3, 16384, 256, 8192),
    _row("35b-int4-24g", B35_INT4, 0.17, 32768, 8, 2112, FP8_KV, CACHED, TEXT, GDN),
    _row("27b-fp8-mtp3-4k", "Qwen3.5-27B-FP8", 0.3, 32768, 16, 4096, FP8_KV, CACHED, TEXT, GDN, _mtp(3)),
    _row("32b-awq-24g-2k", "Qwen3-32B", 0.17, 16384, 64, 2048, FP8_KV, mask="awq-g128"),
    _row("4b-8k-256", "Qwen3.5-4B", 0.12, 32768, 256, 8192, TEXT, GDN, CACHED),
    _row("llama-8b-8k-256", "Llama-3.1-8B", 0.17, 32768, 256, 8192, speed=True),
    _row("30b-fp8-8k", "Qwen3-30B-A3B-FP8", 0.27, 40960, 64, 8192, FP8_KV),
    _row("32b-fp8-eager-2k", "Qwen3-32B-FP8", 0.27, 8192, 16, 2048, EAGER),
    _row("llama-8b-fp8-2k", "Llama-3.1-8B-Instruct-FP8", 0.12, 32768, 64, 2048, FP8_KV),
    _row("4b-vision-mtp1-4k", "Qwen3.5-4B", 0.1, 32768, 32, 4096, GDN, CACHED, _mtp(1)),
    _row("30b-fp8-eager-512", "Qwen3-30B-A3B-FP8", 0.27, 32768, 512, 4096, EAGER),
    _row("2b-vision-2k", "Qwen3.5-2B", 0.08, 16384, 64, 2048, GDN),
    _row("27b-fp8-2k-128", "Qwen3.5-27B-FP8", 0.29, 8192, 128, 2048, TEXT, GDN, speed=True),
    _row(
        "35b-fp8-16k-speed",
        "Qwen3.5-35B-A3B-FP8",
        0.28,
        65536,
        32,
        16384,
        FP8_KV,
        CACHED,
        TEXT,
        GDN,
        speed=True,
    ),
    _row("27b-int4-32g-vision", B27_INT4, 0.225, 32768, 8, 4096, FP8_KV, CACHED, GDN),
    _row("27b-int4-eager-nocache", B27_INT4, 0.17, 16384, 16, 8192, TEXT, GDN, EAGER),
    _row("9b-32g-vision-2k", "Qwen3.5-9B", 0.225, 32768, 256, 2048, GDN),
    _row("35b-int4-8k-256", B35_INT4, 0.225, 32768, 256, 8192, TEXT, GDN),
    _row("35b-int4-32g-mtp2", B35_INT4, 0.225, 65536, 16, 4096, FP8_KV, CACHED, TEXT, GDN, _mtp(2)),
    _row("32b-awq-32g-16k", "Qwen3-32B", 0.225, 16384, 256, 16384, mask="awq-g128"),
    _row(
        "27b-fp8-2k-128-warm",
        "Qwen3.5-27B-FP8",
        0.29,
        8192,
        128,
        2048,
        TEXT,
        GDN,
        after="27b-fp8-2k-128",
    ),
    _row("35b-fp8-nocache-2k", "Qwen3.5-35B-A3B-FP8", 0.28, 32768, 64, 2048, TEXT, GDN),
    _row("27b-fp8-eager-16k", "Qwen3.5-27B-FP8", 0.28, 32768, 64, 16384, TEXT, GDN, CACHED, EAGER),
    _row("gpt-oss-20b-8k", "gpt-oss-20b", 0.17, 65536, 64, 8192),
    _row("27b-int4-32g-16k", B27_INT4, 0.225, 32768, 4, 16384, FP8_KV, CACHED, TEXT, GDN),
    _row("35b-int4-eager-8k", B35_INT4, 0.2, 32768, 32, 8192, TEXT, GDN, EAGER),
    # A 24 GB card with 32,768 tokens, and a prompt of that length.
    _row("27b-int4-24g-32k", B27_INT4, 0.17, 32768, 8, 2048, FP8_KV, CACHED, TEXT, GDN),
    _row("32b-fp8-kvfp8-1024", "Qwen3-32B-FP8", 0.27, 16384, 1024, 4096, FP8_KV),
    _row("35b-fp8-vision-8k", "Qwen3.5-35B-A3B-FP8", 0.29, 65536, 128, 8192, CACHED, GDN),
    _row("35b-fp8-eager-vision", "Qwen3.5-35B-A3B-FP8", 0.28, 32768, 16, 4096, GDN, EAGER),
    # The fourth trip: a planner that was mended on the rows above, on starts that it has not seen.
    _row("27b-fp8-vision-mtp1-4k", "Qwen3.5-27B-FP8", 0.3, 32768, 8, 4096, CACHED, GDN, _mtp(1)),
    _row("35b-int4-vision-4k", B35_INT4, 0.225, 32768, 32, 4096, FP8_KV, CACHED, GDN),
    _row("27b-int4-32g-mtp1-2k", B27_INT4, 0.225, 65536, 8, 2048, FP8_KV, CACHED, TEXT, GDN, _mtp(1)),
    _row("9b-8k-64", "Qwen3.5-9B", 0.225, 65536, 64, 8192, FP8_KV, CACHED, TEXT, GDN),
    _row("27b-fp8-8k-256", "Qwen3.5-27B-FP8", 0.3, 16384, 256, 8192, TEXT, GDN),
    _row("30b-fp8-2k-16", "Qwen3-30B-A3B-FP8", 0.27, 40960, 16, 2048),
    _row("gpt-oss-20b-2k-16", "gpt-oss-20b", 0.17, 32768, 16, 2048),
    _row("2b-16k-512", "Qwen3.5-2B", 0.1, 32768, 512, 16384, TEXT, GDN),
    _row("llama-8b-1k-8", "Llama-3.1-8B", 0.17, 8192, 8, 1024),
    _row("4b-eager-vision-2k", "Qwen3.5-4B", 0.1, 16384, 16, 2048, GDN, EAGER),
    _row("llama-8b-fp8-eager-8k", "Llama-3.1-8B-Instruct-FP8", 0.12, 16384, 128, 8192, EAGER),
    _row("32b-awq-eager-4k", "Qwen3-32B", 0.17, 8192, 16, 4096, EAGER, mask="awq-g128"),
    _row("32b-bf16-8k", "Qwen3-32B", 0.52, 8192, 64, 8192),
    _row("27b-bf16-8k", "Qwen3.5-27B", 0.45, 32768, 32, 8192, TEXT, GDN),
    _row("30b-bf16-8k", "Qwen3-30B-A3B", 0.5, 40960, 64, 8192),
]

PAIRS = [
    # Two cards: what a peer costs. Both H200s are linked by NVLink.
    _row("tp2-27b-fp8-mtp3", "Qwen3.5-27B-FP8", 0.225, 131072, 4, 2048, FP8_KV, CACHED, TEXT, GDN, _mtp(3)),
    _row("tp2-35b-fp8-4k", "Qwen3.5-35B-A3B-FP8", 0.225, 65536, 16, 4096, FP8_KV, CACHED, TEXT, GDN),
    _row("tp2-27b-int4-24g", B27_INT4, 0.17, 65536, 8, 4096, FP8_KV, CACHED, TEXT, GDN),
    _row("tp2-32b-fp8-8k", "Qwen3-32B-FP8", 0.17, 40960, 64, 8192),
    _row("tp2-27b-fp8-vision-eager", "Qwen3.5-27B-FP8", 0.17, 32768, 16, 4096, GDN, EAGER),
    _row("tp2-30b-fp8-8k", "Qwen3-30B-A3B-FP8", 0.17, 32768, 64, 8192),
]
for _one in PAIRS:
    _one["args"]["tensor_parallel_size"] = 2
