"""Pure. Changes of a wish that may make it fit, least intrusive first; the planner verifies each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.planner.llama_cpp_choice import Choice, RamLimit, largest_context
from trimtab.planner.llama_cpp_memory import pad_tokens
from trimtab.units import MIB, format_bytes

__all__ = ["Proposal", "enumerate_changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One changed wish; ``is_last_resort`` marks those that are only worth saying when no other fits."""

    request: ModelRequest
    ram: RamLimit
    change: tuple[tuple[str, SettingValue], ...]
    text: str
    is_last_resort: bool = False


def enumerate_changes(
    request: ModelRequest, checkpoint: GgufCheckpoint, ram: RamLimit, choice: Choice
) -> Iterator[Proposal]:
    """Proposals for a request whose ``choice`` does not fit."""
    plain = _Wish.of(request, choice)
    yield from _more_ram(plain, ram, choice)
    if choice.prompt_cache_mib:
        yield plain.with_pin("cache_ram_mib", 0, "no cache of old prompts").propose(ram)
    quantised = _with_quantised_cache(plain, checkpoint, choice)
    if quantised is not None:
        yield quantised.propose(ram)
    wishes = [plain] if quantised is None else [plain, quantised]
    for wish in wishes:
        for slots in range(plain.slots - 1, 0, -1):
            fewer = wish.with_slots(slots)
            if _context_that_fits(fewer, checkpoint, ram, choice) >= plain.context:
                yield fewer.propose(ram, is_last_resort=wish is not plain)
                break
        yield from _shorter(wish, checkpoint, ram, choice, is_last_resort=wish is not plain)
    for wish in wishes:
        yield from _shorter(wish.with_slots(1), checkpoint, ram, choice, is_last_resort=True)


def _more_ram(wish: _Wish, ram: RamLimit, choice: Choice) -> Iterator[Proposal]:
    """Raise the stack's own cap, where the machine has more free than the cap allows."""
    budget = choice.budget
    needed = budget.requested_bytes + budget.prompt_cache_bytes + budget.error_bytes + ram.reserved_bytes
    cap_bytes = -(-needed // MIB) * MIB
    if ram.cap_bytes is not None and cap_bytes <= ram.free_bytes:
        text = f"ram {format_bytes(cap_bytes)} instead of {format_bytes(ram.cap_bytes)}"
        change = (("ram", f"{cap_bytes // MIB}MiB"),)
        yield Proposal(request=wish.request, ram=replace(ram, cap_bytes=cap_bytes), change=change, text=text)


def _with_quantised_cache(wish: _Wish, checkpoint: GgufCheckpoint, choice: Choice) -> _Wish | None:
    can_pack = checkpoint.key_head_dim % 32 == 0 and checkpoint.value_head_dim % 32 == 0
    is_plain = choice.shape.cache_type_k == choice.shape.cache_type_v == "f16"
    if not can_pack or not is_plain or not choice.shape.flash_attention or not choice.budget.kv_cache_bytes:
        return None
    text = "cache_type_k and cache_type_v q8_0 instead of f16"
    return wish.with_pin("cache_type_k", "q8_0", text).with_pin("cache_type_v", "q8_0", "")


def _shorter(
    wish: _Wish, checkpoint: GgufCheckpoint, ram: RamLimit, choice: Choice, *, is_last_resort: bool
) -> Iterator[Proposal]:
    tokens = _context_that_fits(wish, checkpoint, ram, choice)
    if 0 < tokens < wish.context:
        yield wish.with_context(tokens).propose(ram, is_last_resort=is_last_resort)


def _context_that_fits(wish: _Wish, checkpoint: GgufCheckpoint, ram: RamLimit, choice: Choice) -> int:
    pins = replace(choice.pins, values=wish.request.engine_args)
    shape = replace(choice.shape, num_slots=wish.slots)
    budget = replace(choice.budget, available_bytes=ram.usable_bytes)
    tried = replace(choice, pins=pins, shape=shape, budget=budget)
    return largest_context(wish.request, checkpoint, tried) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """A request with its context and slots spelled out, and the changes made to it so far."""

    request: ModelRequest
    context: int
    slots: int
    change: tuple[tuple[str, SettingValue], ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: ModelRequest, choice: Choice) -> _Wish:
        context = request.context or choice.max_model_len
        return cls(request=request, context=context, slots=choice.shape.num_slots)

    def with_pin(self, name: str, value: SettingValue, text: str) -> _Wish:
        pins = dict(self.request.engine_args) | {name: value}
        return replace(
            self,
            request=replace(self.request, engine_args=tuple(pins.items())),
            change=(*self.change, (name, value)),
            texts=(*self.texts, text) if text else self.texts,
        )

    def with_slots(self, slots: int) -> _Wish:
        if slots == self.slots:
            return self
        return self._resized(
            self.context, slots, ("concurrency", slots), f"concurrency {slots} instead of {self.slots}"
        )

    def with_context(self, context: int) -> _Wish:
        text = f"context {context:,} instead of {self.context:,}"
        return self._resized(context, self.slots, ("context", context), text)

    def _resized(self, context: int, slots: int, entry: tuple[str, SettingValue], text: str) -> _Wish:
        """The wish with another size; a pinned n_ctx or n_parallel is changed by its own name."""
        pins = dict(self.request.engine_args)
        change = [entry]
        if pins.get("n_parallel") is not None and entry[0] == "concurrency":
            pins["n_parallel"] = slots
            change = [("n_parallel", slots)]
        if pins.get("n_ctx") is not None:
            pool = pad_tokens(context) * (1 if pins.get("kv_unified") else slots)
            pins["n_ctx"] = pool
            change = [("n_ctx", pool)] if entry[0] == "context" else [*change, ("n_ctx", pool)]
        asked = self.request
        request = replace(
            asked,
            engine_args=tuple(pins.items()),
            context=context if pins.get("n_ctx") is None or asked.context is not None else None,
            concurrency=slots if pins.get("n_parallel") is None or asked.concurrency is not None else None,
        )
        return replace(
            self,
            request=request,
            context=context,
            slots=slots,
            change=(*self.change, *change),
            texts=(*self.texts, text),
        )

    def propose(self, ram: RamLimit, *, is_last_resort: bool = False) -> Proposal:
        text = " and ".join(self.texts)
        return Proposal(
            request=self.request, ram=ram, change=self.change, text=text, is_last_resort=is_last_resort
        )
