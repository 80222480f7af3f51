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
        read=0.7878,
        read_experts=0.3389,
        read_cache=0.9937,
        unpack=0.03974,
        compute_16=0.4395,
        compute_8=0.6863,
        compute_4=0.6323,
        compute_experts=0.1897,
        narrow_width=249.2,
        compute_attention=1,
        attention_layer_s=2.42e-05,
        latent_layer_s=2.403e-05,
        linear_layer_s=6.512e-05,
        moe_layer_s=2.235e-05,
        dense_layer_s=8.47e-06,
        prefill_layer_s=0.0002292,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "blackwell": CardTiming(
        read=0.8058,
        read_experts=0.4959,
        read_cache=0.8845,
        unpack=0.03975,
        compute_16=0.8807,
        compute_8=0.6561,
        compute_4=0.6469,
        compute_experts=0.1229,
        narrow_width=260.4,
        compute_attention=1,
        attention_layer_s=2.498e-05,
        latent_layer_s=2.299e-05,
        linear_layer_s=2.625e-05,
        moe_layer_s=2.185e-05,
        dense_layer_s=8.463e-06,
        prefill_layer_s=0.0002257,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr6": CardTiming(
        read=0.8436,
        read_experts=0.4077,
        read_cache=0.6963,
        unpack=0.03969,
        compute_16=0.6746,
        compute_8=0.6574,
        compute_4=0.7799,
        compute_experts=0.349,
        narrow_width=243.5,
        compute_attention=0.9253,
        attention_layer_s=2.555e-05,
        latent_layer_s=2.367e-05,
        linear_layer_s=2.538e-05,
        moe_layer_s=2.209e-05,
        dense_layer_s=8.572e-06,
        prefill_layer_s=0.0003382,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr7": CardTiming(
        read=0.8452,
        read_experts=0.4191,
        read_cache=0.7611,
        unpack=0.03976,
        compute_16=0.6873,
        compute_8=0.657,
        compute_4=0.6883,
        compute_experts=0.7021,
        narrow_width=240.3,
        compute_attention=0.9869,
        attention_layer_s=2.454e-05,
        latent_layer_s=2.367e-05,
        linear_layer_s=1.65e-05,
        moe_layer_s=2.183e-05,
        dense_layer_s=8.464e-06,
        prefill_layer_s=0.0003493,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
}
"""By class of card; the all-reduce comes from LINK_TIMINGS."""

LINK_TIMINGS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("hopper", "nvlink"): (1.301e-05, 0.1039, 2.6930e11),
    ("hopper", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("hopper", "pcie"): (1.929e-05, 1, 1.5536e10),
    ("blackwell", "nvlink"): (1.677e-05, 0.07604, 3.0446e11),
    ("blackwell", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("blackwell", "pcie"): (1.929e-05, 1, 1.5536e10),
    ("gddr6", "nvlink"): (2.172e-05, 0.1, 3.8797e10),
    ("gddr6", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("gddr6", "pcie"): (1.929e-05, 1, 1.5536e10),
    ("gddr7", "nvlink"): (2.172e-05, 0.1, 3.8797e10),
    ("gddr7", "pcie_p2p"): (1.649e-05, 1.009, 1.0132e11),
    ("gddr7", "pcie"): (1.436e-05, 1, 3.0252e10),
}
"""(seconds of an all-reduce of two, growth per further rank, bytes per second) by class and wires."""

ENGINE = EngineTiming(
    step_s=0.000192,
    sequence_s=9.347e-06,
    request_s=0.01128,
    prompt_token_s=1.63e-06,
    mixed_share=0.7776,
    steps_waited=1.459,
    burst_share=0.05134,
    queue_share=0.3018,
    coverage=0.7649,
    occupancy=0.7039,
)

PAIR_FACTORS: dict[tuple[str, int, int, int, str], tuple[float, float]] = {
    ("Gemma3ForCausalLM", 26, 1152, 8, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 34, 2560, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 48, 3840, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 62, 5376, 4, "rtx3090"): (1.000, 1.000),
    ("GptOssForCausalLM", 36, 2880, 4, "b200"): (0.989, 0.890),
    ("GptOssForCausalLM", 36, 2880, 4, "h200"): (0.959, 0.951),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b200"): (1.062, 0.983),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b300"): (0.851, 0.955),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "h200"): (0.808, 1.029),
    ("LlamaForCausalLM", 32, 4096, 8, "h200"): (0.714, 0.746),
    ("LlamaForCausalLM", 32, 4096, 16, "h200"): (0.699, 0.957),
    ("LlamaForCausalLM", 80, 8192, 8, "h100"): (0.970, 1.025),
    ("LlamaForCausalLM", 80, 8192, 8, "h200"): (1.039, 1.007),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b200"): (1.161, 1.015),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b300"): (1.013, 0.989),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b200"): (1.008, 1.070),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b300"): (0.962, 1.046),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h100"): (0.761, 0.914),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h200"): (1.080, 1.036),
    ("Qwen2ForCausalLM", 28, 3584, 16, "rtxa6000"): (0.867, 0.973),
    ("Qwen3ForCausalLM", 64, 5120, 16, "h100"): (1.061, 1.000),
    ("Qwen3MoeForCausalLM", 94, 4096, 8, "h200"): (1.160, 1.276),
    ("Qwen3_5ForConditionalGeneration", 64, 5120, 4, "h200"): (1.127, 1.057),
    ("Qwen3_5ForConditionalGeneration", 64, 5120, 4, "rtx3090"): (1.206, 1.025),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "h200"): (1.059, 1.031),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx3090"): (1.216, 0.981),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx5090"): (1.080, 0.996),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 8, "h200"): (1.250, 0.920),
    ("Qwen3_5MoeForConditionalGeneration", 60, 4096, 4, "rtxpro6000"): (0.970, 1.032),
}
"""(TTFT, TPOT) measured over modelled, where a model was measured on a card."""

BANDS: dict[str, tuple[float, float, int]] = {
    "b200": (0.24, 0.28, 273),
    "b300": (0.13, 0.29, 97),
    "h100": (0.25, 0.48, 133),
    "h200": (0.28, 0.37, 227),
    "rtx3090": (0.13, 0.72, 31),
    "rtx5090": (0.17, 0.78, 6),
    "rtxa6000": (0.12, 0.72, 8),
    "rtxpro6000": (0.33, 0.20, 23),
    "hopper": (0.26, 0.42, 360),
    "blackwell": (0.20, 0.28, 370),
    "gddr6": (0.14, 0.73, 39),
    "gddr7": (0.27, 0.37, 29),
}
"""By card, then by class: (TPOT error, TTFT error) that four of five rows of pairs left out
of the fit stayed within, and the number of rows."""
