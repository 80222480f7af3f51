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

__all__ = ["CONTEXT_BYTES", "MemoryRequest", "MemoryTerm", "RankBudget"]

CONTEXT_BYTES = 552_402_944
"""A process's CUDA context: total less free right after start, H200, 2026-11-30."""

_CONTEXT_ERROR_BYTES = 200 * MIB
_NON_TORCH_BYTES = 256 * MIB
_NON_TORCH_EAGER_BYTES = 225 * MIB
_NON_TORCH_PEER_BYTES = 297 * MIB
_FLASHINFER_WORKSPACE_BYTES = 394 * MIB
_AUTOTUNE_BYTES = 256 * MIB
"""Triton empties the L2 cache with a buffer of this size while it tunes a kernel at its first use."""
_NCCL_BYTES = 300 * MIB
_IPC_BUFFERS_BYTES = 24 * MIB


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

        Held against one run (27B int4 on an H200, 23.79 GiB in use after its first requests): 0.2 GiB low.
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
                source="fitted to logged estimates, 2026-11",
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
            error_bytes=32 * MIB,
            source="calibrated from a start on this machine",
        )

    def _non_torch(self) -> MemoryTerm:
        """Growth outside torch after the snapshot; measured 0.22-0.26 GiB at TP1, 0.54 at TP2 (H200)."""
        nbytes = _NON_TORCH_EAGER_BYTES if self.settings.enforce_eager else _NON_TORCH_BYTES
        error = 48 * MIB
        if self.settings.world_size > 1:
            nbytes += _NON_TORCH_PEER_BYTES
            error = 160 * MIB
        if self.request.line.profiles_device_memory:
            nbytes += self._runner_buffers_bytes()
            error += 64 * MIB
        if self.gpu.spec not in {"h200", "h100"}:
            error += 64 * MIB
        return MemoryTerm(
            name="non_torch",
            nbytes=nbytes + int(self.settings.mm_ipc_gpu_memory_gb * GIB),
            error_bytes=error,
            source="measured on H200 with 0.25.1: 0.25 GiB at TP1, 0.54 at TP2",
        )

    def _runner_buffers_bytes(self) -> int:
        """Persistent inputs: embeddings of multimodal models, block tables, V2's per-request token bins."""
        facts, settings = self.request.facts, self.settings
        length = settings.max_model_len or facts.max_position_embeddings
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
                    _NCCL_BYTES + _IPC_BUFFERS_BYTES,
                    200 * MIB,
                    "NCCL and all-reduce buffers, estimate",
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
