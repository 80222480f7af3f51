"""Pure. The profile run's peak: what torch allocates above the weights while vLLM measures itself.

The peak is the highest of four moments, none of which overlap (v1/worker/gpu_model_runner.py
profile_run): compiling, the vision encoder, the forward pass, the sampler. Every term below was
read off allocation traces of vLLM 0.25.1 on H200 (docs/planning.md and benchmarks/ground-truth list
the runs, 2026-11-30): 51 peaks agree within 64 MiB, most of them within 2.

*Compiling* is the surprise. Inductor compares combined with single kernels by running them
(benchmark_combo_kernel, on in all three lines), on random inputs as large as the real arguments.
One of the first graph's kernels takes the whole embedding table, so a second copy of it lives for
an instant: 2.37 GiB for Qwen3.5-27B. It happens only while nothing is in the compile cache, and
only where token ids enter the graph: with the vision tower on, the engine embeds beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import LayerFacts, ModelFacts, VisionFacts
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine
from trimtab.units import MIB

__all__ = [
    "ActivationPeak",
    "estimate_activation_peak",
    "estimate_forward_token_bytes",
    "uses_v2_runner",
]

PeakMoment: TypeAlias = Literal["compiling", "encoder", "forward", "sampler"]

_DEFAULT_SMS = 132
_DEFAULT_L2_BYTES = 60 * MIB
_ENCODER_TOKENS = 16384
"""Merged tokens of the largest dummy image (Qwen's processor: 16,777,216 pixels; logged budget)."""
_MARLIN_BLOCK_ROWS = 64
_MARLIN_TILE_COLUMNS = 256
_MOE_CHUNK_TOKENS = 16384
"""0.17 runs experts in chunks of this many tokens (VLLM_FUSED_MOE_CHUNK_SIZE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPeak:
    """The four moments in bytes, on one rank of one pipeline stage.

    ``peak_bytes`` is the largest; ``warm_peak_bytes`` the largest without compiling, which is what
    a second start with a filled compile cache sees; ``kept_bytes`` stays allocated afterwards
    (expert workspace, cuBLAS, sampler buffer); ``runtime_bytes`` is a full batch's forward pass
    with the kernels that profiling skips.
    """

    compiling_bytes: int
    encoder_bytes: int
    forward_bytes: int
    sampler_bytes: int
    kept_bytes: int
    runtime_bytes: int
    error_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What the first start measures."""
        return max(self.compiling_bytes, self.warm_peak_bytes)

    @property
    def warm_peak_bytes(self) -> int:
        """What a start with a filled compile cache measures."""
        return max(self.encoder_bytes, self.forward_bytes, self.sampler_bytes)

    @property
    def moment(self) -> PeakMoment:
        """Which of the four is the peak."""
        moments: tuple[tuple[PeakMoment, int], ...] = (
            ("compiling", self.compiling_bytes),
            ("encoder", self.encoder_bytes),
            ("forward", self.forward_bytes),
            ("sampler", self.sampler_bytes),
        )
        return max(moments, key=lambda moment: moment[1])[0]


def uses_v2_runner(facts: ModelFacts, line: VersionLine) -> bool:
    """Which model runner a version picks by itself (facts 1.3: 0.25 dense and not hybrid, 0.30 all)."""
    if line.is_v2_runner_universal:
        return True
    if "dense" not in line.v2_runner_families:
        return False
    return all(layer.moe is None and layer.kind != "linear_attention" for layer in facts.layers)


def estimate_activation_peak(
    facts: ModelFacts, settings: VllmSettings, gpu: Gpu, line: VersionLine, *, stage: int = 0
) -> ActivationPeak:
    """The peak on pipeline stage ``stage``: the first has embedding and encoder, the last the sampler."""
    walk = _Walk(facts, settings, gpu, line)
    is_last = stage == settings.pipeline_parallel_size - 1
    kept = walk.workspace_bytes() + walk.cublas_bytes
    encoder = walk.encoder_bytes() if stage == 0 else 0
    forward = walk.forward_bytes()
    sampler = walk.sampler_bytes() if is_last else 0
    if is_last:
        kept += walk.top_k_buffer_bytes()
    return ActivationPeak(
        compiling_bytes=walk.compiling_bytes() if stage == 0 else 0,
        encoder_bytes=encoder,
        forward_bytes=forward,
        sampler_bytes=sampler,
        kept_bytes=kept,
        runtime_bytes=forward + walk.unprofiled_bytes(),
        error_bytes=walk.error_bytes(forward),
    )


def estimate_forward_token_bytes(facts: ModelFacts, settings: VllmSettings, line: VersionLine) -> int:
    """Activation bytes per token at the widest moment of the forward pass, experts' workspace aside."""
    return _Walk(facts, settings, None, line).widest_token_bytes()


class _Walk:
    """Sizes of one configuration; all per-token figures in bytes."""

    def __init__(self, facts: ModelFacts, settings: VllmSettings, gpu: Gpu | None, line: VersionLine) -> None:
        self.facts = facts
        self.settings = settings
        self.line = line
        self.ranks = settings.tensor_parallel_size
        self.tokens = settings.max_num_batched_tokens
        self.rows = min(settings.max_num_seqs, self.tokens)
        self.stream = facts.hidden_size * 2
        self.sms = (gpu and gpu.num_sms) or _DEFAULT_SMS
        self.l2_bytes = (gpu and gpu.l2_cache_bytes) or _DEFAULT_L2_BYTES
        major = ((gpu and gpu.compute_capability) or (9, 0))[0]
        self.cublas_bytes = 32 * MIB if major >= 9 else 8 * MIB + 128 * 1024
        self.is_compiled = settings.compilation_mode == 3
        self.layers = tuple({id(layer): layer for layer in facts.layers}.values())
        self.is_hybrid = any(layer.kind == "linear_attention" for layer in self.layers)
        self.is_moe = any(layer.moe is not None for layer in self.layers)
        self.is_v2_before_030 = uses_v2_runner(facts, line) and line.number < (0, 30)
        self.is_fp8 = facts.quant is not None and facts.quant.format.startswith("fp8")
        self.is_marlin = facts.quant is not None and facts.quant.scheme.bits == 4
        self.takes_images = facts.vision is not None and not settings.mm_limits_are_zero

    def compiling_bytes(self) -> int:
        """The kernel that gathers embeddings, run once on a random table with its own results.

        Where several launch configurations are tried, a buffer that flushes the L2 cache is beside it.
        """
        if not self.is_compiled or self.takes_images:
            return 0
        table = -(-self.facts.vocab_size // (64 * self.ranks)) * 64 * self.stream
        return table + max(self._gather_bytes(), self._draft_gather_bytes())

    def _gather_bytes(self) -> int:
        """What the first kernel writes: gathered rows, and their norm where it is fused.

        Not fused over ranks and with block FP8; per-tensor FP8 adds the norm in 8 bits. Over ranks it
        also clears the gated delta nets' output.
        """
        output = self.tokens * self.stream
        if self.ranks > 1:
            cleared = max((self._values_token_bytes(layer) for layer in self.layers), default=0)
            return output + self.l2_bytes + self.tokens * cleared
        if self.is_hybrid:
            return 2 * output + self.l2_bytes
        if self.is_fp8 and self.facts.quant is not None and self.facts.quant.format == "fp8_block":
            return output + self.l2_bytes
        return 2 * output + (output // 2 if self.is_fp8 else 0)

    def _draft_gather_bytes(self) -> int:
        """The draft head compiles its own gather while hidden states and the experts' workspace are kept."""
        if not self.settings.num_speculative_tokens:
            return 0
        outputs = (2 if self.ranks > 1 else 6) * self.tokens * self.stream
        return outputs + self.workspace_bytes() + self.l2_bytes + self.cublas_bytes

    def _values_token_bytes(self, layer: LayerFacts) -> int:
        return layer.linear_num_value_heads * layer.linear_value_head_dim // self.ranks * 2

    def encoder_bytes(self) -> int:
        """One image of the largest size through the vision tower; attention part is cut over ranks."""
        vision = self.facts.vision
        if vision is None or self.settings.mm_limits_are_zero or self.settings.skip_mm_profiling:
            return 0
        if self.is_v2_before_030:
            return 0
        return _encoder_peak(vision, self._encoder_ranks()) + self.cublas_bytes

    def _encoder_ranks(self) -> int:
        return 1 if self.settings.mm_encoder_tp_mode == "data" else self.ranks

    def encoder_outputs_bytes(self) -> int:
        """Encoder outputs stay in the cache during the forward pass."""
        if self.encoder_bytes() == 0:
            return 0
        return _ENCODER_TOKENS * self.stream

    def workspace_bytes(self) -> int:
        """The experts' shared workspace; it is never given back (v1/worker/workspace.py)."""
        layer = next((layer for layer in self.layers if layer.moe is not None), None)
        if layer is None or layer.moe is None:
            return 0
        moe = layer.moe
        tokens = min(self.tokens, _MOE_CHUNK_TOKENS) if self.line.number < (0, 20) else self.tokens
        whole = self.settings.expert_parallel_size > 1
        inner = moe.intermediate_size if whole else -(-moe.intermediate_size // self.ranks)
        hidden = self.facts.hidden_size
        per_row = max(inner, hidden) + max(2 * inner, hidden)
        return tokens * moe.num_experts_per_token * per_row * 2

    def forward_bytes(self) -> int:
        """The widest moment of the layers, with what is kept beside it."""
        total = self.widest_token_bytes() * self.tokens
        total += self.workspace_bytes() + self.encoder_outputs_bytes()
        has_cublas_gemm = self.is_hybrid or self.is_moe or not (self.is_marlin or self.is_fp8)
        if has_cublas_gemm:
            total += self.cublas_bytes
        if self.is_marlin and not self.is_moe and not self.is_compiled and self.is_hybrid:
            total += self.sms * min(self.tokens, _MARLIN_BLOCK_ROWS) * _MARLIN_TILE_COLUMNS * 4
        if self.is_compiled and self.is_marlin and not self.is_moe:
            total += self.l2_bytes
        return total

    def widest_token_bytes(self) -> int:
        """Per token, in the layer that takes most."""
        return max(self._layer_token_bytes(layer) for layer in self.layers)

    def _layer_token_bytes(self, layer: LayerFacts) -> int:
        if self.is_compiled:
            return self._compiled_token_bytes(layer)
        return self._eager_token_bytes(layer)

    def _compiled_token_bytes(self, layer: LayerFacts) -> int:
        """A graph runs from one attention to the next; its inputs live until it returns.

        At the feed-forward: inputs kept from the layer before, the feed-forward's own, the streams.
        At the end: the same inputs and the next layer's projections.
        """
        held = self._held_token_bytes(layer)
        middle = held + self._ffn_token_bytes(layer) + self._streams(layer) * self.stream
        if layer.moe is None:
            return middle
        following = max(self._projection_token_bytes(other) for other in self.layers)
        end = held + following + (4 if layer.kind == "linear_attention" else 2) * self.stream
        return max(middle, end)

    def _streams(self, layer: LayerFacts) -> int:
        return 2 if not self.is_hybrid and self.ranks == 1 and layer.moe is None else 3

    def _held_token_bytes(self, layer: LayerFacts) -> int:
        """Tensors that the graph after this layer's attention was called with."""
        if layer.kind == "linear_attention":
            keys = layer.linear_num_key_heads * layer.linear_key_head_dim // self.ranks
            values = layer.linear_num_value_heads * layer.linear_value_head_dim // self.ranks
            copies = 2 if self.is_marlin and layer.moe is None else 1
            return (2 * keys + 2 * values) * 2 + copies * values * 2
        gate = 2 if layer.has_output_gate else 1
        return gate * self._query_token_bytes(layer)

    def _query_token_bytes(self, layer: LayerFacts) -> int:
        if layer.kind == "mla":
            return layer.num_heads // self.ranks * layer.v_head_dim * 2
        return layer.num_heads // self.ranks * layer.head_dim * 2

    def _projection_token_bytes(self, layer: LayerFacts) -> int:
        """The next layer's fused projection and what is cut out of it."""
        if layer.kind == "linear_attention":
            return self._held_token_bytes(layer)
        if layer.kind == "mla":
            heads = layer.num_heads // self.ranks
            wide = heads * (layer.qk_nope_head_dim + layer.qk_rope_head_dim)
            return (2 * wide + layer.kv_lora_rank + layer.qk_rope_head_dim + heads * layer.v_head_dim) * 2
        query = self._query_token_bytes(layer)
        key = max(1, layer.num_kv_heads // self.ranks) * layer.head_dim * 2
        gate = 2 if layer.has_output_gate else 1
        fused = gate * query + 2 * key
        return fused + key + (1 + gate) * query

    def _ffn_token_bytes(self, layer: LayerFacts) -> int:
        """Gate and up, their product; FP8 keeps the product in 8 bits with a scale per 128."""
        if layer.moe is not None:
            moe = layer.moe
            shared = moe.shared_intermediate_size // self.ranks * 3 * 2
            routed = moe.num_experts_per_token * moe.intermediate_size // self.ranks
            return shared + routed + moe.num_experts * 4 + (self.stream if shared else 0)
        inner = layer.intermediate_size // self.ranks
        if self.is_fp8 and self.is_compiled:
            return inner * 4 + inner + inner // 32
        kept = self.is_fp8 and not self._forgets_gate_up()
        return inner * 4 + inner * 2 + (inner + inner // 32 if kept else 0)

    def _forgets_gate_up(self) -> bool:
        """Llama in vLLM has one name for gate and up, their product and its input, so the former are gone."""
        return self.facts.family == "llama"

    def _eager_token_bytes(self, layer: LayerFacts) -> int:
        """Without compilation nothing is fused, and Python names hold what they name."""
        if layer.moe is None:
            streams = 6 if self.is_hybrid else 3 if self._forgets_gate_up() else 4
            return self._ffn_token_bytes(layer) + (streams + (self.ranks > 1)) * self.stream
        query = self._query_token_bytes(layer)
        if layer.kind == "linear_attention":
            return self._held_token_bytes(layer) * 2 + 4 * self.stream
        return self._projection_token_bytes(layer) + 3 * query + 3 * self.stream

    def top_k_buffer_bytes(self) -> int:
        """The Triton top-k/top-p kernel's buffer, from 8 rows on (sample/ops/topk_topp_triton.py)."""
        if self.rows < 8:
            return 0
        return min(self.sms, self.rows) * self.facts.vocab_size * 4

    def sampler_bytes(self) -> int:
        """All rows' logits: 16 bit, three times 32 bit (float, softmax, noise); V2 of 0.25 only twice.

        Drafting then checks one draft token per row: logits of both rows (4), the bonus row's in 16 bit
        and as logged (2 + 4), the target's twice, its softmax and its noise (16); read, not traced
        (v1/sample/rejection_sampler.py).
        """
        vocab = self.facts.vocab_size
        streams = self.tokens * self.stream + 2 * self.rows * self.stream
        kept = self.workspace_bytes() + self.cublas_bytes + self.encoder_outputs_bytes() + streams
        gathered = 0 if self.ranks == 1 else self.rows * vocab // self.ranks * 2
        if self.is_v2_before_030:
            return kept + gathered + 6 * self.rows * vocab
        per_logit = 26 if self.settings.num_speculative_tokens else 14
        return kept + gathered + per_logit * self.rows * vocab + self.top_k_buffer_bytes()

    def unprofiled_bytes(self) -> int:
        """Chunked gated-delta-net prefill: states per 64 tokens and three value-sized tensors (facts 4)."""
        layer = next((layer for layer in self.layers if layer.kind == "linear_attention"), None)
        if layer is None:
            return 0
        heads = layer.linear_num_value_heads // self.ranks
        value, key = layer.linear_value_head_dim, layer.linear_key_head_dim
        states = heads * value * key * 2 // 64
        wide = 3 * heads * value * 2
        inside = 2 * heads * 64 * 4
        return self.tokens * (states + wide + inside)

    def error_bytes(self, forward: int) -> int:
        """80 MiB where traces were taken, 15 % of the forward pass on other families."""
        is_traced = self.facts.family in {"qwen3_5", "qwen3_next", "qwen3", "qwen3_moe"}
        return 80 * MIB if is_traced else 80 * MIB + forward * 15 // 100


def _encoder_peak(vision: VisionFacts, ranks: int) -> int:
    """24 hidden widths and the pixels per patch: 1,929 MiB traced for a tower of 1152, 1,737 for 1024.

    Inside the attention of one block: fused qkv (6), its parts (4), rotated q and k (4) and the
    output (2) are cut over ranks; hidden, position, norm and projection (2 each) are not, nor is the
    all-reduced projection that comes on top of them over ranks (traced: 1,498 MiB on each of two).
    """
    patches = _ENCODER_TOKENS * vision.spatial_merge_size**2
    width = vision.hidden_size
    pixels = vision.in_channels * vision.patch_size**2 * vision.temporal_patch_size * 2
    rotary = 2 * (width // max(1, vision.num_heads))
    whole = 8 * width if ranks == 1 else 10 * width
    return patches * (whole + 16 * width // ranks + pixels + rotary)
