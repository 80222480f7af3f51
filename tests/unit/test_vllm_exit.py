"""What vLLM's last words mean to the user."""

# ruff: noqa: E501  # log lines stand as they are written

from __future__ import annotations

import pytest

from trimtab.engines.vllm import Vllm

# Lines as vLLM writes them: printf forms of the sources filled in, or recorded from the CPU build 0.32.0.
LINES = [
    pytest.param("vllm: error: unrecognized arguments: --no-such-flag", "argument --no-such-flag", id="flag"),
    pytest.param(
        "vllm serve: error: argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'",
        "refuses --max-model-len: invalid", id="value",
    ),
    pytest.param(
        "vllm serve: error: argument --tensor-parallel-size/-tp: invalid int value: 'x'",
        "refuses --tensor-parallel-size: invalid", id="value-with-short-form",
    ),
    pytest.param(
        "KeyError: \"Reasoning parser 'nope' not found. Available parsers: deepseek_r1, qwen3\"",
        "no parser nope", id="parser",
    ),
    pytest.param(
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len "
        "(max_position_embeddings=32768.0 or model_max_length=None in model's config.json). To allow",
        "limit of 32768 tokens", id="length",
    ),
    pytest.param("OSError: [Errno 98] Address already in use", "port is taken", id="port"),
    pytest.param("OSError: [Errno 24] Too many open files", "file descriptors", id="descriptors"),
    pytest.param(
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node. If this",
        "needs 4 GPUs and sees 2", id="too-few-cards",
    ),
    pytest.param("RuntimeError: No CUDA GPUs are available", "no usable GPU", id="no-card"),
    pytest.param(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver is too old",
        id="old-driver",
    ),
    pytest.param(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "no code for this card", id="no-kernel",
    ),
    pytest.param(
        "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are",
        "attention_backend=FLASHINFER", id="fp8-kv-on-ampere",
    ),
    pytest.param(
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum "
        "capability: 100. Current capability: 89.",
        "modelopt_fp4 weights need compute capability 100", id="capability",
    ),
    pytest.param(
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=256",
        "no attention backend", id="attention",
    ),
    pytest.param(
        "NCCL WARN Error: failed to extend /dev/shm/nccl-yGgFYh to 33030532 bytes, error: No space left on device",
        "--ipc=host", id="shm",
    ),
    pytest.param(
        "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/x'", "disk is full", id="disk"
    ),
    pytest.param(
        "huggingface_hub.errors.GatedRepoError: 403 Client Error.", "gated: accept its terms", id="gated"
    ),
    pytest.param(
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.", "no such repository", id="no-repo"
    ),
    pytest.param(
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "hub can't be reached", id="offline",
    ),
    pytest.param(
        "ValueError: Model architectures ['Qwen4ForCausalLM'] are not supported for now. Supported",
        "architecture Qwen4ForCausalLM", id="architecture",
    ),
    pytest.param(
        "ValueError: The checkpoint you are trying to load has model type `qwen4` but Transformers does not "
        "recognize this architecture.",
        "architecture qwen4", id="model-type",
    ),
    pytest.param(
        "ValueError: Model architecture PersimmonForCausalLM was supported in vLLM until v0.25.0, and is not",
        "0.25.0 was the last with it", id="dropped",
    ),
    pytest.param(
        "RuntimeError: Failed to load the model config. If the model is a custom model not yet available in the "
        "HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM",
        "trust_remote_code", id="own-code",
    ),
    pytest.param(
        "RuntimeError: Cannot find any model weights with `/model`", "/model holds no weights", id="no-weights"
    ),
    pytest.param(
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
        "cut off", id="truncated",
    ),
    pytest.param(
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
        "40 attention heads can't be split over 3 cards", id="heads",
    ),
    pytest.param(
        "ValueError: The output_size of gate's and up's weight = 64 is not divisible by weight quantization "
        "block_n = 128.",
        "shard of 64 isn't a multiple of 128", id="experts",
    ),
    pytest.param(
        "ValueError: Weight input_size_per_partition = 192 is not divisible by weight quantization block_k = 128.",
        "shard of 192 isn't a multiple of 128", id="block",
    ),
    pytest.param(
        "ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128. Consider",
        "shard of 10944 isn't a multiple of 128", id="marlin",
    ),
    pytest.param(
        "ValueError: Free memory on device cuda:0 (22.1/23.56 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 22.38 GiB). Decrease GPU memory utilization or reduce GPU memory used by other",
        "has 22.1 of 23.56 GiB free and gpu_memory_utilization 0.95 asks for 22.38", id="not-free",
    ),
    pytest.param(
        "ERROR Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free",
        "weights don't fit the card", id="weights",
    ),
    pytest.param(
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please",
        "sampling 1024 requests", id="sampler",
    ),
    pytest.param(
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (327). Each decode sequence",
        "lower it to 327 or less", id="states",
    ),
    pytest.param(
        "AssertionError: In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048).",
        "raise that to 2096", id="block-above-batch",
    ),
    pytest.param(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
        "no memory for the KV cache", id="no-cache",
    ),
    pytest.param(
        "ValueError: To serve at least one request with the model's max seq len (262144), (16.17 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.5 GiB). Based on the available memory, the "
        "estimated maximum model length is 152880. Try increasing `gpu_memory_utilization`",
        "needs 16.17 GiB of KV cache and 9.5 GiB are there: lower context to 152880 or less", id="context",
    ),
    pytest.param(
        "ValueError: To serve at least one request with the models's max seq len (262144), (16.17 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.5 GiB). Try increasing",
        "9.5 GiB are there: lower context", id="context-0.17",
    ),
    pytest.param(
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
        "not even one token", id="auto-fit",
    ),
    pytest.param(
        "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 22.2 GiB.",
        "one after the other", id="profiling-race",
    ),
    pytest.param(
        "AssertionError: Workspace is locked but allocation from 'x.py:12:f' requires 512.00 MB, current size is "
        "256.00 MB. Workspace growth is not allowed after locking.",
        "needed 512.00 MB and 256.00 were reserved", id="workspace",
    ),
    pytest.param(
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "NCCL_P2P_DISABLE=1", id="nccl",
    ),
    pytest.param(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 394.00 MiB. GPU 0 has a total capacity",
        "while allocating 394.00 MiB", id="oom",
    ),
    pytest.param("MemoryError", "out of host memory", id="ram"),
    pytest.param(
        "RuntimeError: CUDA error: an illegal memory access was encountered", "an illegal memory access", id="cuda"
    ),
    pytest.param(
        "(EngineCore pid=9) ModuleNotFoundError: No module named 'diskcache'", "No module named 'diskcache'",
        id="incomplete",
    ),
    pytest.param("ModuleNotFoundError: No module named 'vllm'", "isn't installed", id="no-vllm"),
    pytest.param(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "first error above", id="engine-core",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_last_words_are_explained(line: str, cause: str):
    """When a start fails, the user reads the cause and a way out instead of a traceback."""
    log = (
        "INFO 11-30 08:45:54 [api_server.py:1] vLLM API server version 0.25.1",
        line,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    explained = Vllm().explain_exit(log)
    assert explained is not None
    assert cause in explained
    assert "{" not in explained


def test_the_cause_wins_over_its_consequence():
    """Out of memory in the log's end does not hide why it came to that."""
    log = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
    )
    assert "lower max_num_seqs" in (Vllm().explain_exit(log) or "")


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK',
        "WARNING [interface.py:1] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open')",
        "INFO Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].",
        "WARNING Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal!",
        "INFO GPU KV cache size: 515,965 tokens",
        "WARNING Found ulimit of 20000. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    ],
)  # fmt: skip
def test_ordinary_lines_explain_nothing(line: str):
    """No cause is invented for a server that was killed from outside."""
    assert Vllm().explain_exit((line,)) is None
