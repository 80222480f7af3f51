"""Pure. What to write instead of vLLM arguments and variables that went or were renamed.

Which version has what is in the table of ``vllm_flags``; here is only what replaces it, for those that
people still paste from old guides. Replacements were looked up in the sources of 0.17.1 to 0.33.0.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ENV_NOTES", "FLAG_NOTES"]

_V0: Final = "it belonged to the V0 engine, drop it"
_SPECULATIVE: Final = 'write speculative_config=\'{"method": …, "num_speculative_tokens": …}\''
_STRUCTURED: Final = "write structured_outputs_config='{\"backend\": …}'"
_OVERRIDES: Final = "write hf_overrides='{\"rope_parameters\": …}'"

FLAG_NOTES: Final[dict[str, str]] = {
    "disable_log_requests": "requests aren't logged unless enable_log_requests is set, drop it",
    "enable_reasoning": "reasoning_parser alone turns it on, drop it",
    "task": "write runner (generate or pooling) and, where needed, convert",
    "num_scheduler_steps": _V0,
    "multi_step_stream_outputs": _V0,
    "use_v2_block_manager": _V0,
    "preemption_mode": _V0,
    "num_lookahead_slots": _V0,
    "scheduler_delay_factor": _V0,
    "disable_async_output_proc": _V0,
    "worker_use_ray": "write distributed_executor_backend=ray",
    "engine_use_ray": "write distributed_executor_backend=ray",
    "swap_space": "KV blocks aren't swapped to host memory any more, drop it",
    "max_num_partial_prefills": "prompts are chunked without it, drop it",
    "max_long_partial_prefills": "prompts are chunked without it, drop it",
    "calculate_kv_scales": "scales of the checkpoint, else 1.0, are used; drop it",
    "override_attention_dtype": "drop it",
    "kv_cache_memory": "write kv_cache_memory_bytes",
    "device": "the device follows from the installed build, drop it",
    "max_seq_len_to_capture": "write max_cudagraph_capture_size, which counts tokens of a batch",
    "cuda_graph_sizes": "write cudagraph_capture_sizes",
    "disable_mm_preprocessor_cache": "write mm_processor_cache_gb=0",
    "guided_decoding_backend": _STRUCTURED,
    "guided_decoding_disable_fallback": _STRUCTURED,
    "speculative_model": _SPECULATIVE,
    "num_speculative_tokens": _SPECULATIVE,
    "speculative_draft_tensor_parallel_size": _SPECULATIVE,
    "ngram_prompt_lookup_max": _SPECULATIVE,
    "ngram_prompt_lookup_min": _SPECULATIVE,
    "rope_scaling": _OVERRIDES,
    "rope_theta": _OVERRIDES,
    "use_gpu_for_pooling_score": "write enable_flash_late_interaction",
    "enable_mamba_fine_grained_prefix_cache": "write prefix_match_unit",
    "hash_block_size": "write prefix_match_unit",
    "disable_frontend_multiprocessing": "drop it",
    "lora_extra_vocab_size": "adapters can't add words any more, drop it",
    "long_lora_scaling_factors": "drop it",
    "enable_prompt_adapter": "prompt adapters left with the V0 engine, drop it",
}

ENV_NOTES: Final[dict[str, str]] = {
    "VLLM_USE_V1": "V1 is the only engine since V0 was taken out, drop it",
    "VLLM_ATTENTION_BACKEND": "write attention_backend",
    "VLLM_TEST_FORCE_FP8_MARLIN": "write linear_backend=marlin and moe_backend=marlin",
    "VLLM_TORCH_PROFILER_DIR": "write profiler_config",
    "VLLM_USE_TRITON_FLASH_ATTN": "write attention_backend",
    "VLLM_FLASHINFER_FORCE_TENSOR_CORES": "drop it",
    "VLLM_FLASH_ATTN_VERSION": "write attention_config='{\"flash_attn_version\": …}'",
}
