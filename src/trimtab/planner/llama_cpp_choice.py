"""Pure. Chooses slots, context and prompt cache for llama.cpp within a RAM limit, and says if they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.plan import HostBudget, Rejection
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.planner.llama_cpp_memory import (
    CELL_TOKENS,
    LlamaCppShape,
    MemoryEstimate,
    estimate_memory,
    pad_tokens,
    prefers_loading_without_mmap,
)
from trimtab.planner.llama_cpp_pins import DEFAULT_SLOTS, Pins, check_request
from trimtab.units import GIB, MIB, format_bytes

__all__ = ["Choice", "RamLimit", "choose", "largest_context"]

# What is chosen without being asked leaves this share of the usable RAM to the rest of the machine.
_CHOSEN_RATIO: Final = 0.8
# A chat with tools and a few pages of text: fewer slots are chosen before less context than this.
_COMFORTABLE_TOKENS: Final = 8192
# Below this a chat template and a question hardly fit; nothing smaller is chosen or proposed.
_MIN_CHOSEN_TOKENS: Final = 512
# Prompt tokens computed at once. Twice as many were not faster on the CPU and hold up every other
# stream and every cancellation for twice as long (docs/engines/llama-cpp.md).
DEFAULT_BATCH_TOKENS: Final = 512
# The most that old prompts may take, and the share of what RAM is left; less than a useful size is 0.
_MAX_PROMPT_CACHE_BYTES: Final = 2 * GIB
_PROMPT_CACHE_RATIO: Final = 0.25
_MIN_PROMPT_CACHE_BYTES: Final = 32 * MIB
# States of a sliding window kept per slot, so that a conversation can go on from its last turns.
_WINDOW_CHECKPOINTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RamLimit:
    """What the planner may use: free RAM, or the stack's cap if lower, less what earlier models take."""

    free_bytes: int
    cap_bytes: int | None = None
    reserved_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """Bytes this model may take."""
        cap = self.free_bytes if self.cap_bytes is None else min(self.free_bytes, self.cap_bytes)
        return max(0, cap - self.reserved_bytes)

    def describe(self) -> str:
        """Where the limit comes from, in words."""
        words = [f"{format_bytes(self.free_bytes)} are free"]
        if self.cap_bytes is not None:
            words.append(f"the stack's ram is {format_bytes(self.cap_bytes)}")
        if self.reserved_bytes:
            words.append(f"models before it take {format_bytes(self.reserved_bytes)}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings that decide about memory, and what they take.

    ``max_model_len`` is what llama.cpp will report as a slot's n_ctx. ``rejections`` are the larger
    defaults that were tried first.
    """

    pins: Pins
    shape: LlamaCppShape
    max_model_len: int
    prompt_cache_mib: int
    budget: HostBudget
    fits: bool
    is_context_shortened: bool = False
    rejections: tuple[Rejection, ...] = ()

    def as_candidate(self) -> tuple[tuple[str, SettingValue], ...]:
        """The deciding settings by llama.cpp's names."""
        return _candidate(self.shape)


def choose(request: ModelRequest, checkpoint: GgufCheckpoint, ram: RamLimit) -> Choice:
    """The settings for a request; ``fits`` is False when what was asked is too large.

    Raises StackFileError when the request contradicts itself or the model.
    """
    pins = check_request(request, checkpoint)
    return _Chooser(request=request, checkpoint=checkpoint, ram=ram, pins=pins).choose()


def largest_context(request: ModelRequest, checkpoint: GgufCheckpoint, choice: Choice) -> int | None:
    """The longest context per request that the usable RAM carries with the chosen slots; None if none."""
    ram = RamLimit(free_bytes=choice.budget.available_bytes)
    chooser = _Chooser(request=request, checkpoint=checkpoint, ram=ram, pins=choice.pins)
    tokens = chooser.largest_fitting(choice.shape.num_slots, ratio=1.0)
    return min(tokens, choice.pins.trained_tokens) if tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chooser:
    request: ModelRequest
    checkpoint: GgufCheckpoint
    ram: RamLimit
    pins: Pins

    def choose(self) -> Choice:
        slots = self.pins.integer("n_parallel") or self.request.concurrency
        n_ctx = self.pins.integer("n_ctx")
        if n_ctx is not None:
            return self._finish(self._pinned_shape(n_ctx, slots))
        if self.request.context is not None:
            return self._choose_slots(self.request.context, slots)
        return self._choose_context(slots)

    def _choose_slots(self, context: int, slots: int | None) -> Choice:
        """The asked context in the asked slots, else in as many as fit up to the default."""
        tried = [slots] if slots else [DEFAULT_SLOTS, 2, 1]
        fitting = [n for n in tried if self._is_within(self._shape(context, n), 1.0)]
        return self._finish(self._shape(context, fitting[0] if fitting else tried[-1]))

    def _choose_context(self, slots: int | None) -> Choice:
        """The trained context if it fits with room to spare, else fewer slots, then the largest that fits."""
        trained = self.pins.trained_tokens
        wished = min(trained, _COMFORTABLE_TOKENS)
        if self.checkpoint.is_embedding_only:
            trained = min(trained, 4 * DEFAULT_BATCH_TOKENS)
        tried = [slots] if slots else [DEFAULT_SLOTS, 2, 1]
        fitting = [n for n in tried if self._is_within(self._shape(wished, n), _CHOSEN_RATIO)]
        chosen_slots = fitting[0] if fitting else tried[-1]
        full = self._shape(trained, chosen_slots)
        if self._is_within(full, _CHOSEN_RATIO):
            return self._finish(full)
        tokens = self.largest_fitting(chosen_slots, ratio=_CHOSEN_RATIO)
        tokens = tokens or self.largest_fitting(chosen_slots, ratio=1.0)
        if not tokens:
            return self._finish(self._shape(_MIN_CHOSEN_TOKENS, chosen_slots))
        return self._finish(self._shape(tokens, chosen_slots), rejected=full)

    def largest_fitting(self, slots: int, *, ratio: float) -> int:
        """The most tokens per slot, in whole cells, that fit a share of the usable RAM; 0 if too few."""
        low, high = 0, pad_tokens(self.pins.trained_tokens) // CELL_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if self._is_within(self._shape(middle * CELL_TOKENS, slots), ratio):
                low = middle
            else:
                high = middle - 1
        tokens = min(low * CELL_TOKENS, self.pins.trained_tokens)
        return tokens if tokens >= min(_MIN_CHOSEN_TOKENS, self.pins.trained_tokens) else 0

    def _pinned_shape(self, n_ctx: int, slots: int | None) -> LlamaCppShape:
        """A pinned n_ctx in the given slots, else in as many as leave each what was asked or is usual."""
        wished = self.request.context or min(self.pins.trained_tokens, _COMFORTABLE_TOKENS)
        if slots is None:
            slots = next((n for n in (DEFAULT_SLOTS, 2) if n_ctx // n >= wished), 1)
            # A pool larger than one slot may use is only reachable with more slots.
            slots = max(slots, -(-n_ctx // pad_tokens(self.pins.trained_tokens)))
        if self.pins.is_on("kv_unified"):
            return self._shape_of_pool(pad_tokens(n_ctx), slots)
        return self._shape(max(1, n_ctx // slots), slots)

    def _shape(self, context: int, slots: int) -> LlamaCppShape:
        return self._shape_of_pool(pad_tokens(context) * slots, slots)

    def _shape_of_pool(self, pool_tokens: int, slots: int) -> LlamaCppShape:
        pins = self.pins
        embeddings = pins.is_on("embeddings", default=self.checkpoint.is_embedding_only)
        # An input to embed must go through in one piece, or llama.cpp refuses it.
        usual = max(DEFAULT_BATCH_TOKENS, pool_tokens // slots) if embeddings else DEFAULT_BATCH_TOKENS
        batch = pins.integer("n_batch") or max(usual, pins.integer("n_ubatch") or 0)
        ubatch = min(batch, pins.integer("n_ubatch") or usual)
        mmap = not prefers_loading_without_mmap(self.checkpoint) or not pins.is_on("repack", default=True)
        has_window = self.checkpoint.sliding_window_tokens > 0 and not pins.is_on("swa_full")
        window_checkpoints = _WINDOW_CHECKPOINTS if has_window else 0
        pinned_checkpoints = pins.integer("n_ctx_checkpoints")
        return LlamaCppShape(
            pool_tokens=pool_tokens,
            num_slots=slots,
            ubatch_tokens=ubatch,
            cache_type_k=pins.word("cache_type_k", "f16"),
            cache_type_v=pins.word("cache_type_v", "f16"),
            flash_attention=pins.word("flash_attn", "auto") != "off",
            kv_unified=pins.is_on("kv_unified"),
            swa_full=pins.is_on("swa_full"),
            embeddings=embeddings,
            mmap=pins.word("load_mode", "mmap" if mmap else "none") == "mmap",
            repack=pins.is_on("repack", default=True),
            context_checkpoints=window_checkpoints if pinned_checkpoints is None else pinned_checkpoints,
        )

    def _is_within(self, shape: LlamaCppShape, ratio: float) -> bool:
        estimate = estimate_memory(self.checkpoint, shape)
        return self._least_bytes(estimate) <= self.ram.usable_bytes * ratio

    def _least_bytes(self, estimate: MemoryEstimate) -> int:
        """What must be there: the engine, its old prompts where pinned, and the error of the estimate."""
        pinned_cache = (self.pins.integer("cache_ram_mib") or 0) * MIB
        return estimate.resident_bytes + estimate.checkpoint_bytes + pinned_cache + estimate.error_bytes

    def _finish(self, shape: LlamaCppShape, *, rejected: LlamaCppShape | None = None) -> Choice:
        estimate = estimate_memory(self.checkpoint, shape)
        cache_mib = self._prompt_cache_mib(estimate)
        budget = HostBudget(
            available_bytes=self.ram.usable_bytes,
            requested_bytes=estimate.resident_bytes,
            weights_bytes=estimate.weights_bytes,
            kv_cache_bytes=estimate.kv_cache_bytes,
            compute_bytes=estimate.compute_bytes,
            process_bytes=estimate.process_bytes,
            prompt_cache_bytes=cache_mib * MIB + estimate.checkpoint_bytes,
            error_bytes=estimate.error_bytes,
        )
        return Choice(
            pins=self.pins,
            shape=shape,
            max_model_len=min(shape.sequence_tokens, self.pins.trained_tokens),
            prompt_cache_mib=cache_mib,
            budget=budget,
            fits=self._least_bytes(estimate) <= self.ram.usable_bytes,
            is_context_shortened=rejected is not None,
            rejections=() if rejected is None else (self._rejection(rejected),),
        )

    def _prompt_cache_mib(self, estimate: MemoryEstimate) -> int:
        """As much as the slots themselves hold, within a quarter of the RAM left; 0 if that is little."""
        pinned = self.pins.integer("cache_ram_mib")
        if pinned is not None:
            return pinned
        left = self.ram.usable_bytes - self._least_bytes(estimate)
        size = min(int(left * _PROMPT_CACHE_RATIO), estimate.kv_cache_bytes, _MAX_PROMPT_CACHE_BYTES)
        return size // MIB if size >= _MIN_PROMPT_CACHE_BYTES else 0

    def _rejection(self, shape: LlamaCppShape) -> Rejection:
        needed = format_bytes(self._least_bytes(estimate_memory(self.checkpoint, shape)))
        limit = f"{_CHOSEN_RATIO:.0%} of {format_bytes(self.ram.usable_bytes)}"
        return Rejection(
            candidate=_candidate(shape),
            code="ram",
            text=f"{shape.sequence_tokens:,} tokens in each of {shape.num_slots} slots need {needed},"
            f" more than {limit}",
        )


def _candidate(shape: LlamaCppShape) -> tuple[tuple[str, SettingValue], ...]:
    return (
        ("n_ctx", shape.pool_tokens),
        ("n_parallel", shape.num_slots),
        ("cache_type_k", shape.cache_type_k),
        ("cache_type_v", shape.cache_type_v),
    )
