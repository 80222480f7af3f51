"""Pure. What the last words of a vLLM server mean, in one clause with what would work.

Texts were read in the sources of vLLM 0.17.1, 0.25.1 and 0.33.0 and in published start-up logs; those
of bad arguments, a busy port, a length and a missing model were provoked on the CPU build (2026-11-30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["ExitCause", "explain_vllm_exit", "find_cause"]

# No message of vLLM's is longer; a pattern takes at most the square of it.
_MOST_CHARS: Final = 2_000
_MOST_LINES: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Cause:
    """``meaning`` may name groups of the pattern that matched; a group that it lacks reads as nothing."""

    code: str
    meaning: str
    patterns: tuple[re.Pattern[str], ...]


def _cause(code: str, meaning: str, *patterns: str) -> _Cause:
    return _Cause(code, meaning, tuple(re.compile(pattern) for pattern in patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """A cause that a log tells: a stable code, its meaning in one clause, and the figures of its line."""

    code: str
    meaning: str
    figures: tuple[tuple[str, str], ...] = ()


_ARGUMENTS: Final = (
    _cause(
        "unknown_argument",
        "this vLLM does not know the argument {what}: engine_version isn't the version that is installed",
        r"error: unrecognized arguments: (?P<what>\S+)",
    ),
    _cause(
        "ambiguous_argument",
        "the argument {what} is cut short ambiguously",
        r"error: ambiguous option: (?P<what>\S+)",
    ),
    _cause(
        "bad_argument", "vLLM refuses {flag}: {what}", r"error: argument (?P<flag>[^\s:/]+)\S*: (?P<what>.+)"
    ),
    _cause(
        "unknown_parser",
        "this vLLM has no parser {what}",
        r"(?:Reasoning|Tool) parser '?(?P<what>[\w.-]+)'? not found",
        r"invalid tool call parser: (?P<what>\S+)",
    ),
    _cause(
        "context_above_model",
        "context {asked} is above the model's own limit of {limit} tokens",
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:max_position_embeddings=)?(?P<limit>\d+)",
    ),
)
_MACHINE: Final = (
    _cause(
        "port_taken", "its port is taken by another process", r"\[Errno 98\]", r"[Aa]ddress already in use"
    ),
    _cause(
        "descriptors",
        "it has run out of file descriptors: raise the limit of open files to 65535 (ulimit -n, or Docker's "
        "default-ulimits)",
        # vLLM warns with the error's words, in backticks, wherever its limit is below 65535.
        r"\[Errno 24\](?! Too many open files`)",
        r"Too many open files(?!`)",
    ),
    _cause(
        "too_few_gpus",
        "it needs {what} GPUs and sees {limit}",
        r"World size \((?P<what>\d+)\) is larger than the number of available GPUs \((?P<limit>\d+)\)",
    ),
    _cause(
        "driver_too_old",
        "the GPU driver is too old for the CUDA of this build",
        r"CUDA driver version is insufficient",
        r"forward compatibility was attempted on non supported HW",
        r"unsupported display driver / cuda driver",
        r"NVIDIA driver on your system is too old",
    ),
    _cause(
        "no_gpu",
        "it sees no usable GPU: no driver, or the container was given no card",
        r"No CUDA GPUs are available",
        r"Failed to infer device type",
        r"Found no NVIDIA driver",
    ),
    _cause(
        "no_kernel",
        "this build of vLLM has no code for this card's compute capability",
        r"no kernel image is available for execution on the device",
    ),
    _cause(
        "fp8_kv_in_triton",
        "this card has no FP8 units for an FP8 KV cache in Triton: set attention_backend=FLASHINFER or "
        "kv_cache_dtype=auto",
        r"type fp8e4nv not supported",
    ),
    _cause(
        "capability_too_low",
        "{what} weights need compute capability {limit} (75 stands for 7.5) or more, which this card lacks",
        r"quantization method (?P<what>\S+) is not supported for the current GPU\. "
        r"Minimum capability: (?P<limit>\d+)",
    ),
    _cause(
        "no_attention_backend",
        "no attention backend of this vLLM can do these settings on {what}",
        r"No valid attention backend found for (?P<what>.+?) with",
    ),
    _cause(
        "shared_memory_small",
        "shared memory is too small: give the container --ipc=host or a larger --shm-size",
        r"(?:[Ee]rror|No space left|[Uu]nable to \w+).*(?:/dev/shm|shared memory file)",
        r"(?:in|on|of|file) '?/dev/shm.*(?:[Ee]rror|No space left|failed)",
        r"Bus error",
    ),
    _cause("disk_full", "the disk is full", r"No space left on device"),
)
_MODEL: Final = (
    _cause(
        "gated_repository",
        "the repository is gated: accept its terms on the hub and set HF_TOKEN",
        r"GatedRepoError",
        r"you are not in the authorized list",
        r"gated repo",
    ),
    _cause(
        "no_repository",
        "the hub has no such repository, or it is private and HF_TOKEN isn't set",
        r"RepositoryNotFoundError",
        r"Repository Not Found for url",
        r"is not a local folder and is not a valid model identifier",
    ),
    _cause(
        "hub_unreachable",
        "the model isn't in the cache and the hub can't be reached",
        r"LocalEntryNotFoundError",
        r"outgoing traffic has been disabled",
        r"couldn't connect to '?https://huggingface",
    ),
    _cause(
        "architecture_dropped",
        "this vLLM dropped {what}; {limit} was the last with it",
        r"Model architecture (?P<what>\w+) was supported in vLLM until v(?P<limit>\d[\d.]*\d)",
    ),
    _cause(
        "architecture_unknown",
        "this vLLM does not know the architecture {what}: take a newer engine_version",
        r"Model architectures \[?'?(?P<what>\w+)'?.*? are not supported for now",
        r"model type `(?P<what>\w+)` but Transformers does not recognize this architecture",
    ),
    _cause(
        "code_not_trusted",
        "the model ships code of its own: read it, then set trust_remote_code=true",
        r"consider setting `trust_remote_code=True`",
        r"requires you to execute the \w+ file",
    ),
    _cause(
        "weights_absent",
        "{what} holds no weights: the download is incomplete or the folder is another's",
        r"Cannot find any model weights with `(?P<what>[^`]*)`",
    ),
    _cause(
        "weights_cut",
        "a weight file is cut off: download it again",
        r"SafetensorError",
        r"Error while deserializing header",
    ),
    _cause(
        "weights_missing",
        "the checkpoint lacks weights that the model needs",
        r"weights were not initialized from checkpoint",
    ),
    _cause(
        "config_unreadable",
        "the folder or repository has no readable config.json",
        r"Invalid repository ID or local directory",
        r"config\.json.*not a valid JSON",
    ),
)
_SHARDS: Final = (
    _cause(
        "heads_not_divisible",
        "{what} attention heads can't be split over {limit} cards",
        r"attention heads \((?P<what>\d+)\) must be divisible by tensor parallel size \((?P<limit>\d+)\)",
    ),
    _cause(
        "shard_not_divisible",
        "a shard of {what} isn't a multiple of {limit}: use a smaller tensor_parallel_size",
        r"(?P<what>\d+) is not divisible by +(?:\w+(?: \w+)* = )?(?P<limit>\d+)",
    ),
)
# In the order of a start.
_MEMORY: Final = (
    _cause(
        "card_not_free",
        "the card has {free} of {total} GiB free and gpu_memory_utilization {share} asks for {need}: end "
        "what else runs on it, or lower the share",
        r"Free memory on device [^(]*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"desired GPU memory utilization \((?P<share>[\d.]+), (?P<need>[\d.]+) GiB\)",
    ),
    _cause(
        "weights_exceed_card",
        "the weights don't fit the card: spread them over more cards or take a smaller quantisation (a lower "
        "gpu_memory_utilization does not help)",
        r"Failed to load model - not enough GPU memory",
    ),
    _cause(
        "sampler_out_of_memory",
        "out of memory sampling {what} requests at once: lower max_num_seqs",
        r"out of memory occurred when warming up sampler with (?P<what>\d+) dummy requests",
    ),
    _cause(
        "too_few_state_blocks",
        "max_num_seqs {what} is above the {limit} cache blocks there are: lower it to {limit} or less",
        r"max_num_seqs \((?P<what>\d+)\) exceeds available Mamba cache blocks \((?P<limit>\d+)\)",
    ),
    _cause(
        "block_above_batch",
        "a cache block of {what} tokens is above max_num_batched_tokens {limit}: raise that to {what}",
        r"align mode, block_size \((?P<what>\d+)\) must be <= max_num_batched_tokens \((?P<limit>\d+)\)",
    ),
    _cause(
        "no_room_for_cache",
        "weights and activations leave no memory for the KV cache: raise gpu_memory_utilization, lower "
        "max_num_batched_tokens or max_num_seqs, or use more cards",
        r"No available memory for the cache blocks",
    ),
    _cause(
        "context_exceeds_cache",
        "one request of {asked} tokens needs {need} GiB of KV cache and {free} GiB are there: lower "
        "context{upto}",
        r"max seq len \((?P<asked>\d+)\), \(?(?P<need>[\d.]+) GiB KV cache is needed.*?"
        r"KV cache memory \((?P<free>[\d.]+) GiB\)(?:.*?maximum model length is (?P<limit>\d+))?",
    ),
    _cause(
        "no_token_fits",
        "not even one token's KV cache fits: raise gpu_memory_utilization or use more cards",
        r"Cannot auto-fit max_model_len",
    ),
    _cause(
        "memory_changed",
        "another process gave back GPU memory while this one measured: start them one after the other",
        r"Error in memory profiling\. Initial free memory",
    ),
    _cause(
        "workspace_locked",
        "a kernel needed {need} MB and {limit} were reserved at start: lower max_num_batched_tokens",
        r"Workspace is locked but allocation from '[^']*' requires (?P<need>[\d.]+) ?MB, "
        r"current size is (?P<limit>[\d.]+) ?MB",
    ),
)
# What follows from most of the above, hence last.
_CONSEQUENCES: Final = (
    _cause(
        "cards_cannot_talk",
        "the cards can't talk to each other (NCCL): try NCCL_P2P_DISABLE=1 and check shared memory",
        r"NCCL.*(?:timed out|timeout|error)",
        r"ncclUnhandledCudaError|ncclSystemError|ncclInternalError",
    ),
    _cause(
        "gpu_out_of_memory",
        "out of GPU memory{allocating}: lower gpu_memory_utilization, so that more stays outside of vLLM's "
        "budget, or max_num_batched_tokens",
        r"(?:CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory)"
        r"(?:.*?Tried to allocate (?P<need>[\d.]+ [KMG]iB))?",
    ),
    _cause(
        "host_out_of_memory",
        "out of host memory",
        r"Cannot allocate memory",
        r"\bMemoryError\b",
        r"oom-kill|Killed process",
    ),
    _cause("kernel_failed", "a CUDA kernel failed: {what}", r"CUDA error: (?P<what>.+)"),
    _cause("not_installed", "vLLM isn't installed in that environment", r"No module named '?vllm'?"),
    _cause(
        "environment_incomplete",
        "its environment is incomplete: {what}",
        # At the beginning of a line it ends a traceback; within one it is a warning that changes nothing.
        r"^(?:\([^)]*\) )?(?:ModuleNotFoundError|ImportError): (?P<what>.+)",
    ),
    _cause(
        "engine_died_serving",
        "its engine process died while serving",
        r"EngineDeadError|EngineCore encountered an issue",
    ),
    _cause(
        "engine_died_starting",
        "its engine process died at start; the first error above in its log tells why",
        r"Engine core initialization failed",
    ),
)
_CAUSES: Final = (*_ARGUMENTS, *_MACHINE, *_MODEL, *_SHARDS, *_MEMORY, *_CONSEQUENCES)


def explain_vllm_exit(log_tail: tuple[str, ...]) -> str | None:
    """The likely cause of an unplanned exit in one clause, or None when the log does not tell."""
    found = find_cause(log_tail)
    return None if found is None else found.meaning


def find_cause(log_tail: tuple[str, ...]) -> ExitCause | None:
    """The likely cause of an unplanned exit with its figures; any text, in time linear to its length."""
    lines = [line[:_MOST_CHARS] for line in log_tail[-_MOST_LINES:]]
    for cause in _CAUSES:
        for pattern in cause.patterns:
            for line in lines:
                match = pattern.search(line)
                if match is not None:
                    found = match.groupdict()
                    figures = tuple((name, value) for name, value in found.items() if value)
                    return ExitCause(code=cause.code, meaning=_fill(cause.meaning, found), figures=figures)
    return None


def _fill(meaning: str, found: dict[str, str | None]) -> str:
    words = {name: value or "" for name, value in found.items()}
    words["upto"] = f" to {words['limit']} or less" if words.get("limit") else ""
    words["allocating"] = f" while allocating {words['need']}" if words.get("need") else ""
    return meaning.format_map(words)
