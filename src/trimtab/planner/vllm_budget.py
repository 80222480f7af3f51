"""Pure. One card's memory in terms: each with its bytes, its error band and where the figure is from.

requested = weights + activation + non_torch + cuda_graph + kv_cache; what lies outside the budget
comes on top: CUDA context, communication buffers, FlashInfer's workspace, the runner's buffers and
graphs where the version doesn't count them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.core.plan import GpuBudget
from trimtab.planner.vllm_activations import ActivationPeak, uses_v2_runner
from trimtab.planner.vllm_attention import AttentionChoice
from trimtab.planner.vllm_cuda_graphs import CudaGraphMemory
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine, VersionMatch
from trimtab.planner.vllm_weights import RankWeights
from trimtab.units import GIB, MIB

__all__ = ["CALIBRATED", "CONTEXT_BYTES", "MemoryRequest", "MemoryTerm", "RankBudget"]

CALIBRATED = "calibrated from a start on this machine"
"""The source of a term that was measured here."""
CONTEXT_BYTES = 552_402_944
"""A process's CUDA context: total less free right after start, H200, 2026-11-30."""

_CONTEXT_ERROR_BYTES = 200 * MIB
_NON_TORCH_BYTES = 230 * MIB
"""cuBLAS, kernels and the driver's own: 230 MiB in every start without a graph estimate (H200, 0.25.1)."""
_NON_TORCH_LAYER_BYTES = int(0.4 * MIB)
_NON_TORCH_MIXED_BYTES = 16 * MIB
"""What estimating graphs leaves behind: 8 to 12 MiB for 24 to 32 layers, 22 to 32 for 64, 32 to 36 for 40
with gated delta nets and experts (25 start-ups, 2026-11-30)."""
_NON_TORCH_PEER_BYTES = 324 * MIB
"""NCCL's channels opened after the snapshot: 324 MiB more in five starts on two linked H200s."""
_FLASHINFER_WORKSPACE_BYTES = 394 * MIB
_AUTOTUNE_BYTES = 256 * MIB
"""Triton empties the L2 cache with a buffer of this size while it tunes a kernel at its first use."""
_COMMUNICATION_BYTES = 1016 * MIB
"""Before the snapshot on two NVLinked H200s: 1,534 MiB held against 518 alone (1,502 more with experts)."""
_COMMUNICATION_UNLINKED_BYTES = 384 * MIB
"""Two 5090s over PCIe: 0.89 of 31.39 GiB gone when the engine looks first (club-3090 issue 1087, the card
without a display), less a context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """One replica: the model, its parts, resolved settings, the cards it runs on (rank order), the version.

    ``weights`` may carry an earlier ``estimate_weights`` result for the same sharding, since that
    is the slow part of a sweep. ``calibration_bytes`` is added to the term it names.
    """

    facts: ModelFacts
    parts: ModelParts
    settings: VllmSettings
    gpus: tuple[Gpu, ...]
    version: VersionMatch
    weights: tuple[RankWeights, ...] | None = None
    calibration_bytes: tuple[tuple[str, int], ...] = ()

    @property
    def line(self) -> VersionLine:
        """The version line it is accounted as."""
        return self.version.line


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One term of one rank's budget: bytes, half-width of its band, and where the figure comes from."""

    name: str
    nbytes: int
    error_bytes: int
    source: str
    is_outside_budget: bool = False


class RankBudget:
    """One card's terms, and the budget they add up to."""

    def __init__(
        self,
        request: MemoryRequest,
        gpu: Gpu,
        weights: RankWeights,
        peak: ActivationPeak,
        graphs: CudaGraphMemory,
        attention: AttentionChoice,
    ) -> None:
        self.request = request
        self.settings = request.settings
        self.gpu = gpu
        self.stage = weights.stage
        self.weights = weights
        self.peak = peak
        self.graphs = graphs
        self.attention = attention
        self.corrections = dict(request.calibration_bytes)
        self.terms = self._make_terms()
        self.budget = self._make_budget()

    @property
    def kv_cache_bytes(self) -> int:
        """What the engine logs as available for the cache; negative when the rest takes too much."""
        return self.budget.kv_cache_bytes

    @property
    def inside_bytes(self) -> int:
        """Everything in the budget but the cache."""
        return sum(term.nbytes for term in self.terms if not term.is_outside_budget)

    @property
    def outside_bytes(self) -> int:
        """Everything beside the budget."""
        return sum(term.nbytes for term in self.terms if term.is_outside_budget)

    @property
    def error_bytes(self) -> int:
        """Terms are independent: squares add up, those outside the budget left out."""
        return int(math.sqrt(sum(term.error_bytes**2 for term in self.terms if not term.is_outside_budget)))

    @property
    def runtime_bytes(self) -> int:
        """A full batch of a long prompt: the cache and weights as allocated, the batch's own on top.

        Held against 28 starts on H200 after a long prompt: 0.5 GiB above in the median, from 0.4 below
        to 2.0 above (large batches, images that the prompt didn't have).
        """
        steady = self.inside_bytes - self._named("activation") - self._named("cuda_graph")
        return (
            steady
            + max(0, self.kv_cache_bytes)
            + max(self.peak.runtime_bytes * 3 // 2, self.peak.sampler_bytes, self.peak.encoder_bytes)
            + _AUTOTUNE_BYTES
            + self.graphs.captured_bytes
            + sum(
                term.nbytes
                for term in self.terms
                if term.is_outside_budget and term.name != "cuda_graph_capture"
            )
        )

    @property
    def later_runtime_bytes(self) -> int:
        """The same for a start with a filled compile cache: its KV cache has the compiler's share too.

        Measured: 27B FP8 with 9.66 GiB of cache the first time held 39.4 GiB, with 11.53 GiB 41.3.
        """
        if self.settings.kv_cache_memory_bytes is not None:
            return self.runtime_bytes
        return self.runtime_bytes + self.peak.peak_bytes - self.peak.warm_peak_bytes

    def _named(self, name: str) -> int:
        return sum(term.nbytes for term in self.terms if term.name == name)

    def _make_terms(self) -> tuple[MemoryTerm, ...]:
        found = (
            MemoryTerm(
                name="weights",
                nbytes=self.weights.weights_bytes,
                error_bytes=self.weights.error_bytes,
                source=f"tensor list replayed on the allocator; {self.request.facts.basis}",
            ),
            MemoryTerm(
                name="activation",
                nbytes=self.peak.peak_bytes,
                error_bytes=self.peak.error_bytes,
                source=f"profile run peaks while {self.peak.moment}; traced on H200 with 0.25.1",
            ),
            self._non_torch(),
            MemoryTerm(
                name="cuda_graph",
                nbytes=self.graphs.subtracted_bytes,
                error_bytes=self.graphs.error_bytes if self.graphs.subtracted_bytes else 0,
                source="the engine's extrapolation; single graphs weighed in 25 starts on H200, 2026-11",
            ),
            *self._outside(),
        )
        return tuple(self._correct(term) for term in found)

    def _correct(self, term: MemoryTerm) -> MemoryTerm:
        delta = self.corrections.get(term.name)
        if delta is None:
            return term
        return replace(
            term,
            nbytes=max(0, term.nbytes + delta),
            error_bytes=16 * MIB,
            source=CALIBRATED,
        )

    def _non_torch(self) -> MemoryTerm:
        """Growth outside torch after the snapshot: 230 to 266 MiB at TP1, 554 to 588 at TP2 (H200)."""
        nbytes = _NON_TORCH_BYTES
        facts = self.request.facts
        if self.graphs.subtracted_bytes:
            nbytes += _NON_TORCH_LAYER_BYTES * facts.num_layers
            nbytes += _NON_TORCH_MIXED_BYTES if facts.is_hybrid and facts.is_moe else 0
        error = 24 * MIB
        if self.settings.world_size > 1:
            nbytes += _NON_TORCH_PEER_BYTES
            error = 96 * MIB
        if self.request.line.profiles_device_memory:
            nbytes += self._runner_buffers_bytes()
            error += 64 * MIB
        if self.gpu.spec not in {"h200", "h100"}:
            error += 64 * MIB
        return MemoryTerm(
            name="non_torch",
            nbytes=nbytes + int(self.settings.mm_ipc_gpu_memory_gb * GIB),
            error_bytes=error,
            source="35 starts on H200 with 0.25.1, 2026-11: 230 to 266 MiB at TP1, 554 to 588 at TP2",
        )

    def _runner_buffers_bytes(self) -> int:
        """Persistent inputs: embeddings of multimodal models, block tables, V2's per-request token bins."""
        facts, settings = self.request.facts, self.settings
        length = settings.max_model_len or facts.max_context_tokens
        buffers = settings.max_num_seqs * -(-length // 16) * 4 if not facts.is_hybrid else 0
        if facts.is_multimodal:
            buffers += settings.max_num_batched_tokens * facts.hidden_size * 2
        if uses_v2_runner(facts, self.request.line):
            buffers += settings.max_num_seqs * facts.vocab_size * 4 * 33 // 32
        return buffers

    def _outside(self) -> tuple[MemoryTerm, ...]:
        """What lies beside the budget."""
        terms = [
            _outside_term("context", CONTEXT_BYTES, _CONTEXT_ERROR_BYTES, "552 MB seen on an H200"),
        ]
        if not self.request.line.profiles_device_memory:
            terms.append(
                _outside_term(
                    "runner_buffers",
                    self._runner_buffers_bytes(),
                    32 * MIB,
                    "input buffers that this version counts nowhere",
                )
            )
        if self.settings.world_size > 1:
            terms.append(
                _outside_term(
                    "communication",
                    self._communication_bytes(),
                    400 * MIB,
                    "NCCL and all-reduce buffers: measured on two H200s, read from a log of two 5090s",
                )
            )
        if self.attention.backend == "FLASHINFER":
            terms.append(
                _outside_term(
                    "flashinfer_workspace",
                    _FLASHINFER_WORKSPACE_BYTES,
                    0,
                    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE, allocated at the first batch",
                )
            )
        if not self.graphs.subtracted_bytes and self.graphs.captured_bytes:
            terms.append(
                _outside_term(
                    "cuda_graph_capture",
                    self.graphs.captured_bytes,
                    self.graphs.error_bytes,
                    "captured after the cache is allocated, not subtracted by this version",
                )
            )
        return tuple(terms)

    def _communication_bytes(self) -> int:
        """Symmetric-memory all-reduce and NVLink channels exist on data-centre Hopper and Blackwell."""
        is_linked = bool(self.gpu.has_p2p) and (self.gpu.compute_capability or (0, 0))[0] in {9, 10}
        return _COMMUNICATION_BYTES if is_linked else _COMMUNICATION_UNLINKED_BYTES

    def _make_budget(self) -> GpuBudget:
        pinned = self.settings.kv_cache_memory_bytes
        requested = math.ceil(self.gpu.total_bytes * self.settings.gpu_memory_utilization)
        inside = self.inside_bytes
        return GpuBudget(
            total_bytes=self.gpu.total_bytes,
            requested_bytes=None if pinned is not None else requested,
            weights_bytes=self._named("weights"),
            activation_bytes=self._named("activation"),
            non_torch_bytes=self._named("non_torch"),
            cuda_graph_bytes=self._named("cuda_graph"),
            kv_cache_bytes=pinned if pinned is not None else requested - inside,
            outside_budget_bytes=self.outside_bytes,
            error_bytes=self.error_bytes,
        )


def _outside_term(name: str, nbytes: int, error_bytes: int, source: str) -> MemoryTerm:
    return MemoryTerm(
        name=name, nbytes=nbytes, error_bytes=error_bytes, source=source, is_outside_budget=True
    )
