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
        read=0.787,
        read_experts=0.3341,
        read_cache=0.9984,
        unpack=0.03976,
        compute_16=0.4292,
        compute_8=0.6787,
        compute_4=0.7092,
        compute_experts=0.1894,
        narrow_width=250.5,
        compute_attention=1,
        attention_layer_s=2.475e-05,
        latent_layer_s=2.428e-05,
        linear_layer_s=1.915e-05,
        moe_layer_s=2.226e-05,
        dense_layer_s=8.256e-06,
        prefill_layer_s=0.0002176,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "blackwell": CardTiming(
        read=0.8383,
        read_experts=0.4935,
        read_cache=0.8619,
        unpack=0.03976,
        compute_16=0.8918,
        compute_8=0.6504,
        compute_4=0.7074,
        compute_experts=0.1219,
        narrow_width=261.8,
        compute_attention=1,
        attention_layer_s=2.526e-05,
        latent_layer_s=2.326e-05,
        linear_layer_s=1.915e-05,
        moe_layer_s=2.163e-05,
        dense_layer_s=8.28e-06,
        prefill_layer_s=0.0002164,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr6": CardTiming(
        read=0.8458,
        read_experts=0.4097,
        read_cache=0.6363,
        unpack=0.03968,
        compute_16=0.6715,
        compute_8=0.6515,
        compute_4=0.8382,
        compute_experts=0.3485,
        narrow_width=244.5,
        compute_attention=0.926,
        attention_layer_s=2.589e-05,
        latent_layer_s=2.391e-05,
        linear_layer_s=1.918e-05,
        moe_layer_s=2.194e-05,
        dense_layer_s=8.381e-06,
        prefill_layer_s=0.0003231,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
    "gddr7": CardTiming(
        read=0.8571,
        read_experts=0.4222,
        read_cache=0.7372,
        unpack=0.03977,
        compute_16=0.6848,
        compute_8=0.6511,
        compute_4=0.7458,
        compute_experts=0.6974,
        narrow_width=241.5,
        compute_attention=0.9891,
        attention_layer_s=2.487e-05,
        latent_layer_s=2.391e-05,
        linear_layer_s=1.892e-05,
        moe_layer_s=2.154e-05,
        dense_layer_s=8.281e-06,
        prefill_layer_s=0.0003338,
        reduce_s=0.0,
        reduce_growth=0.0,
        reduce_bytes_per_s=1.0,
    ),
}
"""By class of card; the all-reduce comes from LINK_TIMINGS."""

LINK_TIMINGS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("hopper", "nvlink"): (1.277e-05, 0.1045, 2.6584e11),
    ("hopper", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("hopper", "pcie"): (2.109e-05, 1, 1.5110e10),
    ("blackwell", "nvlink"): (1.691e-05, 0.07523, 3.0146e11),
    ("blackwell", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("blackwell", "pcie"): (2.109e-05, 1, 1.5110e10),
    ("gddr6", "nvlink"): (2.188e-05, 0.1, 3.8598e10),
    ("gddr6", "pcie_p2p"): (1.5e-05, 1, 1.5000e10),
    ("gddr6", "pcie"): (2.109e-05, 1, 1.5110e10),
    ("gddr7", "nvlink"): (2.188e-05, 0.1, 3.8598e10),
    ("gddr7", "pcie_p2p"): (1.638e-05, 1.009, 9.6507e10),
    ("gddr7", "pcie"): (1.376e-05, 1, 3.0222e10),
}
"""(seconds of an all-reduce of two, growth per further rank, bytes per second) by class and wires."""

ENGINE = EngineTiming(
    step_s=0.0001905,
    sequence_s=9.292e-06,
    request_s=0.01132,
    prompt_token_s=1.622e-06,
    mixed_share=0.7618,
    steps_waited=1.467,
    burst_share=0.05101,
    queue_share=0.2742,
    coverage=0.7632,
    occupancy=0.704,
)

PAIR_FACTORS: dict[tuple[str, int, int, int, str], tuple[float, float]] = {
    ("Gemma3ForCausalLM", 26, 1152, 8, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 34, 2560, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 48, 3840, 4, "rtx3090"): (1.000, 1.000),
    ("Gemma3ForCausalLM", 62, 5376, 4, "rtx3090"): (1.000, 1.000),
    ("GptOssForCausalLM", 36, 2880, 4, "b200"): (0.995, 0.891),
    ("GptOssForCausalLM", 36, 2880, 4, "h200"): (0.962, 0.950),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b200"): (1.065, 0.984),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "b300"): (0.852, 0.957),
    ("KimiK25ForConditionalGeneration", 61, 7168, 4, "h200"): (0.806, 1.030),
    ("LlamaForCausalLM", 32, 4096, 8, "h200"): (0.714, 0.751),
    ("LlamaForCausalLM", 80, 8192, 8, "h100"): (0.971, 1.027),
    ("LlamaForCausalLM", 80, 8192, 8, "h200"): (1.043, 1.008),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b200"): (1.163, 1.013),
    ("MiniMaxM2ForCausalLM", 62, 3072, 4, "b300"): (1.015, 0.986),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b200"): (1.007, 1.071),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "b300"): (0.961, 1.045),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h100"): (0.759, 0.910),
    ("MiniMaxM2ForCausalLM", 62, 3072, 8, "h200"): (1.080, 1.034),
    ("Qwen2ForCausalLM", 28, 3584, 16, "rtxa6000"): (0.872, 0.974),
    ("Qwen3ForCausalLM", 64, 5120, 16, "h100"): (1.057, 1.001),
    ("Qwen3MoeForCausalLM", 94, 4096, 8, "h200"): (1.162, 1.269),
    ("Qwen3_5ForConditionalGeneration", 64, 5120, 4, "rtx3090"): (1.228, 1.032),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx3090"): (1.223, 0.986),
    ("Qwen3_5MoeForConditionalGeneration", 40, 2048, 4, "rtx5090"): (1.095, 0.991),
    ("Qwen3_5MoeForConditionalGeneration", 60, 4096, 4, "rtxpro6000"): (0.975, 1.035),
}
"""(TTFT, TPOT) measured over modelled, where a model was measured on a card."""

BANDS: dict[str, tuple[float, float, int]] = {
    "b200": (0.24, 0.27, 273),
    "b300": (0.12, 0.28, 97),
    "h100": (0.24, 0.47, 133),
    "h200": (0.30, 0.35, 210),
    "rtx3090": (0.14, 0.70, 31),
    "rtx5090": (0.17, 0.75, 6),
    "rtxa6000": (0.12, 0.72, 8),
    "rtxpro6000": (0.33, 0.19, 23),
    "hopper": (0.26, 0.41, 343),
    "blackwell": (0.20, 0.28, 370),
    "gddr6": (0.14, 0.74, 39),
    "gddr7": (0.27, 0.37, 29),
}
"""By card, then by class: (TPOT error, TTFT error) that four of five rows of pairs left out
of the fit stayed within, and the number of rows."""
