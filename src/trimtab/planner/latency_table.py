"""Pure. The speed model's fitted figures. Written by benchmarks/speed/fit_speed.py --write; not by hand.

Fitted on 2026-11-30 to measured vLLM servers: the vLLM rows of the accuracy sample in NVIDIA's
aiconfigurator-core 0.12.0 (Apache-2.0; H100, H200, B200, B300; vLLM 0.12 to 0.19) and public
measurements on 3090, 5090, RTX A6000 and RTX PRO 6000 (sources by row in
benchmarks/speed/tables/consumer-cards.csv; vLLM 0.17 to 0.27). benchmarks/speed/README.md has the
method, the cross-validation and what the tables cannot tell.
"""

from __future__ import annotations

from trimtab.planner.latency_steps import CardTiming, EngineTiming

__all__ = ["BANDS", "CARD_TIMINGS", "ENGINE", "LINK_TIMINGS", "PAIR_FACTORS"]

CARD_TIMINGS: dict[str, CardTiming] = {
    "hopper": CardTiming(
        read=0.7877,
        read_experts=0.3339,
        read_cache=1,
        unpack=0.03966,
        compute_16=0.4735,
        compute_8=0.6913,
        compute_4=0.484,
        compute_experts=0.1929,
        narrow_width=241.5,
        compute_attention=1,
        attention_layer_s=2.334e-05,
        latent_layer_s=2.314e-05,
        linear_layer_s=6.417e-05,
        moe_layer_s=2.212e-05,
        dense_layer_s=8.395e-06,
        prefill_layer_s=0.0001075,
        linear_prompt_s=0.09007,
        linear_scan_s=2.294e-07,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "blackwell": CardTiming(
        read=0.8084,
        read_experts=0.5041,
        read_cache=0.9337,
        unpack=0.03967,
        compute_16=0.8454,
        compute_8=0.66,
        compute_4=0.5878,
        compute_experts=0.1328,
        narrow_width=253.4,
        compute_attention=1,
        attention_layer_s=2.428e-05,
        latent_layer_s=2.204e-05,
        linear_layer_s=2.629e-05,
        moe_layer_s=2.157e-05,
        dense_layer_s=8.401e-06,
        prefill_layer_s=0.0001085,
        linear_prompt_s=0.06112,
        linear_scan_s=2.25e-07,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr6": CardTiming(
        read=0.8418,
        read_experts=0.4104,
        read_cache=0.7543,
        unpack=0.03959,
        compute_16=0.6794,
        compute_8=0.6615,
        compute_4=0.7223,
        compute_experts=0.371,
        narrow_width=237,
        compute_attention=0.9282,
        attention_layer_s=2.478e-05,
        latent_layer_s=2.282e-05,
        linear_layer_s=2.522e-05,
        moe_layer_s=2.187e-05,
        dense_layer_s=8.513e-06,
        prefill_layer_s=0.0001599,
        linear_prompt_s=0.06562,
        linear_scan_s=2.243e-07,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr7": CardTiming(
        read=0.8454,
        read_experts=0.4194,
        read_cache=0.7955,
        unpack=0.03968,
        compute_16=0.6921,
        compute_8=0.6611,
        compute_4=0.6999,
        compute_experts=0.7937,
        narrow_width=233,
        compute_attention=0.9971,
        attention_layer_s=2.38e-05,
        latent_layer_s=2.282e-05,
        linear_layer_s=1.704e-05,
        moe_layer_s=2.162e-05,
        dense_layer_s=8.403e-06,
        prefill_layer_s=0.0001594,
        linear_prompt_s=0.03458,
        linear_scan_s=2.181e-07,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
}
"""By class of card; the all-reduce comes from LINK_TIMINGS."""

LINK_TIMINGS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("hopper", "nvlink"): (1.346e-05, 0.1021, 2.5141e11),
    ("hopper", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("hopper", "pcie"): (1.966e-05, 1, 1.6278e10),
    ("blackwell", "nvlink"): (1.712e-05, 0.07627, 2.9685e11),
    ("blackwell", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("blackwell", "pcie"): (1.966e-05, 1, 1.6278e10),
    ("gddr6", "nvlink"): (2.225e-05, 0.1, 3.8991e10),
    ("gddr6", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("gddr6", "pcie"): (1.966e-05, 1, 1.6278e10),
    ("gddr7", "nvlink"): (2.225e-05, 0.1, 3.8991e10),
    ("gddr7", "pcie_p2p"): (1.686e-05, 1.01, 1.4128e11),
    ("gddr7", "pcie"): (1.406e-05, 1, 3.1280e10),
}
"""(seconds of an all-reduce of two, growth per further rank, bytes per second) by class and wires."""

ENGINE = EngineTiming(
    step_s=0.0001901,
    sequence_s=9.161e-06,
    request_s=0.01349,
    prompt_token_s=1.938e-06,
    mixed_share=0.801,
    steps_waited=1.553,
    burst_share=0.05272,
    queue_share=0.3204,
    coverage=0.7588,
    occupancy=0.7017,
)

PAIR_FACTORS: dict[tuple[str, int, int, int, str], tuple[float, float]] = {
    ("Gemma3ForCausalLM", 26, 1152, 8, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 34, 2560, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 48, 3840, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 62, 5376, 4, "rtx3090"): (1.000, 1.000),
    ("GptOssForCausalLM", 36, 2880, 4, "b200"): (1.001, 0.894),
    ("GptOssForCausalLM", 36, 2880, 4, "h200"): (0.956, 0.951),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b200"): (1.049, 0.981),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b300"): (0.831, 0.951),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "h200"): (0.805, 1.030),
    ("LlamaForCausalLM", 32, 4096, 8, "h200"): (0.697, 0.737),
    ("LlamaForCausalLM", 32, 4096, 16, "h200"): (0.791, 0.960),
    ("LlamaForCausalLM", 80, 8192, 8, "h100"): (0.979, 1.024),
    ("LlamaForCausalLM", 80, 8192, 8, "h200"): (1.047, 1.006),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b200"): (1.154, 1.014),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b300"): (0.970, 0.983),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b200"): (1.037, 1.070),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b300"): (0.955, 1.046),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h100"): (0.770, 0.912),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h200"): (1.069, 1.035),
    ("Qwen2ForCausalLM", 28, 3584, 16, "rtxa6000"): (0.861, 0.972),
    ("Qwen3ForCausalLM", 64, 5120, 16, "h100"): (1.097, 1.002),
    ("Qwen3MoeForCausalLM", 94, 4096, 8, "h200"): (1.168, 1.274),
    ("Qwen3_5ForConditionalGeneration", 64, 5120, 4, "h200"): (0.976, 1.062),
    ("Qwen3_5ForConditionalGeneration", 64, 5120, 4, "rtx3090"): (0.918, 1.028),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "h200"): (1.003, 1.036),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx3090"): (0.991, 0.981),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx5090"): (0.818, 0.999),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 8, "h200"): (1.035, 0.924),
    ("Qwen3_5MoeForConditionalGeneration", 60, 4096, 4, "rtxpro6000"): (0.946, 1.038),
}
"""(TTFT, TPOT) measured over modelled, where a model was measured on a card."""

BANDS: dict[str, tuple[float, float, int]] = {
    "b200": (0.24, 0.29, 273),
    "b300": (0.14, 0.29, 97),
    "h100": (0.27, 0.50, 133),
    "h200": (0.27, 0.37, 227),
    "rtx3090": (0.13, 0.74, 31),
    "rtx5090": (0.15, 0.82, 6),
    "rtxa6000": (0.12, 0.74, 8),
    "rtxpro6000": (0.33, 0.28, 23),
    "hopper": (0.27, 0.44, 360),
    "blackwell": (0.20, 0.29, 370),
    "gddr6": (0.14, 0.78, 39),
    "gddr7": (0.26, 0.60, 29),
}
"""By card, then by class: (TPOT error, TTFT error) that four of five rows of pairs left out
of the fit stayed within, and the number of rows."""
