"""Pure. Changes of a wish that make it fit, least intrusive first; each is verified by planning it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.core.plan import Change
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.planner.accelerator_specs import CARDS
from trimtab.planner.gpu_spec import make_gpu
from trimtab.planner.rope_stretch import find_documented_stretch, stretch_facts
from trimtab.planner.vllm_cards import kind_of
from trimtab.planner.vllm_evaluate import Evaluation
from trimtab.planner.vllm_placement import Placement, place_models
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["FindAlternatives", "find_changes"]

FindAlternatives: TypeAlias = Callable[[VllmWish], tuple[VllmWish, ...]]
"""The same model in other quantisations, as wishes."""

_MAX_CHANGES: Final = 4
# More cards than this of one kind are another machine.
_MOST_CARDS: Final = 16
_CONTEXT_STEP: Final = 1024
# Every try is a plan of all models: many models get fewer tries.
_MOST_TRIES: Final = 120
_FEWEST_TRIES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    """One changed world: wishes, cards, and how a user would say it; ``group`` names the kind of change."""

    wishes: tuple[VllmWish, ...]
    gpus: tuple[Gpu, ...]
    change: tuple[tuple[str, SettingValue], ...]
    text: str
    group: str


def find_changes(
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    missed: Placement,
    find_alternatives: FindAlternatives,
) -> tuple[Change, ...]:
    """Up to four changes, at most one of each kind, that the planner itself says would fit."""
    found: list[Change] = []
    settled: set[str] = set()
    tries = max(_FEWEST_TRIES, _MOST_TRIES // len(wishes))
    for proposal in _enumerate(wishes, gpus, missed, find_alternatives):
        if proposal.group in settled:
            continue
        if tries == 0:
            break
        tries -= 1
        placed = place_models(proposal.wishes, proposal.gpus)
        if not placed.fits:
            continue
        settled.add(proposal.group)
        text = f"{proposal.text}: {_describe(proposal.wishes, placed)}"
        found.append(Change(change=proposal.change, text=text))
        if len(found) == _MAX_CHANGES:
            break
    return tuple(found)


def _describe(wishes: tuple[VllmWish, ...], placed: Placement) -> str:
    """What that plan would be, in words; models are named where there are several."""
    parts = []
    for wish, item in zip(wishes, placed.chosen, strict=True):
        name = f"{wish.name} " if len(wishes) > 1 else ""
        copies = f"{item.num_replicas} x " if item.num_replicas > 1 else ""
        requests = f"{item.max_concurrency:.1f} requests of {item.max_model_len:,} tokens at once"
        parts.append(f"{name}{copies}{item.shape}, {requests}")
    return "; ".join(parts)


def _enumerate(
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    missed: Placement,
    find_alternatives: FindAlternatives,
) -> Iterator[_Proposal]:
    """Proposals from what costs least to what costs money."""
    misfits = [at for at, item in enumerate(missed.chosen) if not item.fits] or list(range(len(wishes)))
    for at in misfits:
        yield from _longer_rope(wishes, gpus, at, missed.chosen[at])
    for at in misfits:
        yield from _legal_values(wishes, gpus, at, missed.chosen[at])
    for at in misfits:
        yield from _less_context(wishes, gpus, at, missed.chosen[at])
    for at in misfits:
        yield from _less_concurrency(wishes, gpus, at)
    for at in misfits:
        yield from _without_pins(wishes, gpus, at)
    for at in misfits:
        for other in find_alternatives(wishes[at]):
            yield _Proposal(
                wishes=_with(wishes, at, other),
                gpus=gpus,
                change=(("model", other.name), ("checkpoint", other.checkpoint)),
                text=f"{other.checkpoint} in place of {wishes[at].checkpoint}",
                group=f"checkpoint {at}",
            )
    yield from _more_cards(wishes, gpus)
    yield from _larger_cards(wishes, gpus)


def _of(wishes: tuple[VllmWish, ...], wish: VllmWish) -> str:
    """Which model a change is of, where there are several."""
    return f" for {wish.name}" if len(wishes) > 1 else ""


def _with(wishes: tuple[VllmWish, ...], at: int, wish: VllmWish) -> tuple[VllmWish, ...]:
    return (*wishes[:at], wish, *wishes[at + 1 :])


def _changed(wish: VllmWish, request: ModelRequest) -> VllmWish:
    return replace(wish, request=request)


def _pinned(wish: VllmWish, name: str, value: SettingValue) -> VllmWish:
    pins = dict(wish.pins) | {name: value}
    return _changed(wish, replace(wish.request, engine_args=tuple(pins.items())))


def _kept(wish: VllmWish) -> tuple[tuple[str, SettingValue], ...]:
    return tuple((key, value) for key, value in wish.request.engine_args if key == "hf_overrides")


def _unpinned(wish: VllmWish, name: str) -> VllmWish:
    pins = tuple((key, value) for key, value in wish.request.engine_args if key != name)
    return _changed(wish, replace(wish.request, engine_args=pins))


def _longer_rope(
    wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], at: int, item: Evaluation
) -> Iterator[_Proposal]:
    """YaRN, where the context is beyond what the model is made for and its authors document how."""
    wish = wishes[at]
    if "hf_overrides" in wish.pins or item.max_model_len <= wish.facts.max_context_tokens:
        return
    overrides = find_documented_stretch(wish.facts, item.max_model_len)
    if overrides is None:
        return
    changed = _pinned(wish, "hf_overrides", overrides)
    facts = stretch_facts(wish.facts, changed.pins)
    yield _Proposal(
        wishes=_with(wishes, at, replace(changed, facts=facts)),
        gpus=gpus,
        change=(("model", wish.name), ("hf_overrides", overrides)),
        text=f"YaRN{_of(wishes, wish)} (--set 'hf_overrides={overrides}'; short prompts may lose a little)",
        group=f"hf_overrides {at}",
    )


def _legal_values(
    wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], at: int, item: Evaluation
) -> Iterator[_Proposal]:
    """The largest legal value of a pinned or asked argument that is illegal as it is."""
    wish = wishes[at]
    for problem in item.problems:
        value = problem.largest_legal
        if value is None:
            continue
        changed = _pinned(wish, problem.setting, value)
        if problem.setting == "max_model_len" and wish.context_tokens is not None:
            changed = _changed(wish, replace(wish.request, context=int(value)))
        if problem.setting == "max_num_seqs" and wish.request.concurrency is not None:
            changed = _changed(wish, replace(wish.request, concurrency=int(value) * item.num_replicas))
        if problem.setting == "replicas":
            changed = _changed(wish, replace(wish.request, replicas=int(value)))
        yield _Proposal(
            wishes=_with(wishes, at, changed),
            gpus=gpus,
            change=(("model", wish.name), (problem.setting, value)),
            text=f"{problem.setting} {value}{_of(wishes, wish)}",
            group=f"{problem.setting} {at}",
        )


def _less_context(
    wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], at: int, item: Evaluation
) -> Iterator[_Proposal]:
    """The longest context that the nearest candidate carries."""
    wish = wishes[at]
    longest = item.memory.capacity.max_model_len_that_fits
    rounded = longest // _CONTEXT_STEP * _CONTEXT_STEP or longest
    if not 0 < rounded < item.max_model_len:
        return
    changed = _changed(wish, replace(wish.request, context=rounded))
    if "max_model_len" in wish.pins:
        changed = _pinned(wish, "max_model_len", rounded)
    yield _Proposal(
        wishes=_with(wishes, at, changed),
        gpus=gpus,
        change=(("model", wish.name), ("context", rounded)),
        text=f"a context of {rounded:,} tokens{_of(wishes, wish)}",
        group=f"max_model_len {at}",
    )


def _less_concurrency(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], at: int) -> Iterator[_Proposal]:
    wish = wishes[at]
    pinned = wish.pins.get("max_num_seqs")
    is_pinned = isinstance(pinned, int) and not isinstance(pinned, bool)
    current = pinned if is_pinned else wish.request.concurrency
    value = int(current or 0) // 2
    while value >= 1:
        changed = (
            _pinned(wish, "max_num_seqs", value)
            if is_pinned
            else _changed(wish, replace(wish.request, concurrency=value))
        )
        yield _Proposal(
            wishes=_with(wishes, at, changed),
            gpus=gpus,
            change=(("model", wish.name), ("concurrency", value)),
            text=f"a concurrency of {value}{_of(wishes, wish)}",
            group=f"max_num_seqs {at}",
        )
        value //= 2


def _without_pins(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], at: int) -> Iterator[_Proposal]:
    """One pinned argument left to the planner, then all of them."""
    wish = wishes[at]
    # Facts follow hf_overrides: without them it would be another model.
    names = tuple(name for name in wish.pins if name != "hf_overrides")
    for name in names:
        yield _Proposal(
            wishes=_with(wishes, at, _unpinned(wish, name)),
            gpus=gpus,
            change=(("model", wish.name), (name, None)),
            text=f"{name}{_of(wishes, wish)} left to the planner in place of {wish.pins[name]}",
            group=f"pin {at}",
        )
    if len(names) > 1:
        yield _Proposal(
            wishes=_with(wishes, at, _changed(wish, replace(wish.request, engine_args=_kept(wish)))),
            gpus=gpus,
            change=(("model", wish.name), ("engine_args", None)),
            text="every pinned argument left to the planner",
            group=f"pin {at}",
        )


def _more_cards(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...]) -> Iterator[_Proposal]:
    """More cards of the kind that there is most of."""
    if any(wish.card_indices is not None for wish in wishes):
        wishes = tuple(_changed(wish, replace(wish.request, gpus=None)) for wish in wishes)
    kinds = [kind_of(gpu) for gpu in gpus]
    lead = max(gpus, key=lambda gpu: (kinds.count(kind_of(gpu)), gpu.total_bytes))
    first = 1 + max(gpu.index for gpu in gpus)
    for extra in range(1, _MOST_CARDS - len(gpus) + 1):
        added = tuple(replace(lead, index=first + at, free_bytes=None) for at in range(extra))
        yield _Proposal(
            wishes=wishes,
            gpus=(*gpus, *added),
            change=(("gpus", f"+{extra} {lead.spec or lead.name}"),),
            text=f"{extra} more {lead.name}",
            group="cards",
        )


def _larger_cards(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...]) -> Iterator[_Proposal]:
    """As many cards of the next larger kinds."""
    largest = max(gpu.total_bytes for gpu in gpus)
    for spec in sorted(CARDS.values(), key=lambda card: card.total_bytes):
        if spec.total_bytes <= largest:
            continue
        cards = tuple(make_gpu(spec, index=gpu.index) for gpu in gpus)
        yield _Proposal(
            wishes=wishes,
            gpus=cards,
            change=(("gpus", f"{len(cards)}x{spec.name}"),),
            text=f"{len(cards)} x {spec.product} in place of these",
            group="larger cards",
        )
