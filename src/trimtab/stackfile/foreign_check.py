"""Pure. A foreign stack judged: flags and variables per version, containers, models among each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from trimtab.engines.vllm_flags import FLAG_VERSIONS
from trimtab.planner.gpu_spec import MOST_GPUS
from trimtab.planner.vllm_versions import DEFAULT_VLLM_VERSION
from trimtab.stackfile.foreign_check_env import check_env
from trimtab.stackfile.foreign_check_flags import check_flags
from trimtab.stackfile.foreign_judge import Case, line_for
from trimtab.stackfile.foreign_model import Finding, ForeignModel, ForeignStack
from trimtab.units import GIB, format_bytes

__all__ = ["check_foreign"]

# Maintainers name 10 GB (vLLM issue 1710); docker's own is 64 MB, which NCCL outgrows with two cards.
_MIN_SHM_BYTES: Final = GIB
_LOOPBACK: Final = ("127.", "localhost", "::1", "[::1]")


def check_foreign(
    foreign: ForeignStack,
    *,
    has_p2p: bool | None = None,
    engine_version: str | None = None,
    gpu_total_bytes: int | None = None,
) -> tuple[Finding, ...]:
    """What is wrong, harmful, obsolete or worth knowing, in the order of the models.

    ``has_p2p`` is whether the cards reach each other's memory; ``engine_version`` stands in where the
    file does not say; ``gpu_total_bytes`` is the smallest card's memory; None is unknown. The findings
    of reading (``foreign.findings``) are not repeated. Memory and legality are the planner's.
    """
    cases = [
        Case(
            model=model,
            version=model.request.engine_version or engine_version or DEFAULT_VLLM_VERSION,
            has_p2p=has_p2p,
            gpu_total_bytes=gpu_total_bytes,
            label=f"{model.request.name}: " if len(foreign.models) > 1 else "",
        )
        for model in foreign.models
    ]
    found: list[Finding] = []
    for case in cases:
        found.extend(_check_version(case, is_given=engine_version is not None))
        found.extend(check_env(case))
        found.extend(check_flags(case))
        found.extend(_check_container(case))
        found.extend(_check_access(case))
        found.extend(_check_card_count(case))
    for one, other in combinations(cases, 2):
        found.extend(_check_pair(one, other))
    found.extend(_check_cards(cases))
    return tuple(dict.fromkeys(found))


def _check_version(case: Case, *, is_given: bool) -> Iterator[Finding]:
    if case.model.request.engine_version is None and not is_given:
        text = f"the file does not say which vLLM runs; judged as {case.version}"
        is_said = case.model.is_container  # reading has said so at the image
        yield case.on("version_assumed", "note" if is_said else "unknown", text, "give --engine-version")
    elif case.is_older_than_known:
        oldest = FLAG_VERSIONS[0]
        text = (
            f"vLLM {case.version} is older than {oldest}, the oldest that is known here: whether it knows"
            f" this model and these flags is not judged, and memory is that of {oldest}"
        )
        yield case.on("version_too_old", "unknown", text, f"--engine-version {oldest} or later")


def _check_container(case: Case) -> Iterator[Finding]:
    """Shared memory for NCCL (case 41 of the field's reports)."""
    model = case.model
    if not model.is_container or case.world_size == 1 or model.ipc == "host":
        return
    if model.shm_bytes is None:
        yield case.on(
            "shm_too_small",
            "harmful",
            f"{case.world_size} cards talk through /dev/shm, which docker makes 64 MB; NCCL fails to open it",
            "--ipc=host, or --shm-size=16g",
        )
    elif model.shm_bytes < _MIN_SHM_BYTES:
        text = f"--shm-size gives {format_bytes(model.shm_bytes)} to {case.world_size} cards"
        yield case.on("shm_too_small", "harmful", text, "--ipc=host, or --shm-size=16g")


def _check_access(case: Case) -> Iterator[Finding]:
    model = case.model
    has_key = case.is_given("api_key") or model.find_env("VLLM_API_KEY") is not None
    if model.port is None or has_key or model.address.startswith(_LOOPBACK):
        return
    yield case.on(
        "open_endpoint",
        "note",
        f"whoever reaches this machine may use port {model.port}: no API key is asked for",
        f"publish it on 127.0.0.1:{model.port} only, or set VLLM_API_KEY",
    )


def _check_card_count(case: Case) -> Iterator[Finding]:
    """More cards used than given, and the other way round."""
    given = case.model.gpus.num_known
    if given is None or not case.is_world_known:
        return
    if case.world_size > given:
        text = f"the engine wants {case.world_size} cards and is given {given}"
        yield case.on("too_few_cards", "error", text)
    elif case.world_size < given:
        text = f"the engine uses {case.world_size} of the {given} cards it is given"
        yield case.on("idle_cards", "note", text, "--tensor-parallel-size decides how many are used")


def _check_pair(one: Case, other: Case) -> Iterator[Finding]:
    first, second = one.model, other.model
    names = f"{first.request.name} and {second.request.name}"
    if first.port is not None and first.port == second.port:
        yield other.on("same_port", "error", f"{names} both listen on port {first.port}")
    if first.container_name and first.container_name == second.container_name:
        text = f"{names} have the same container name, so that the second cannot start beside the first"
        yield other.on("same_container", "error", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one model takes of each of its cards; None where it is pinned in bytes."""

    case: Case
    share: float | None


def _check_cards(cases: Sequence[Case]) -> Iterator[Finding]:
    """Cards that several models share (case 32 of the field's reports)."""
    by_card: dict[int, list[_Share]] = {}
    for case in cases:
        for index in _cards_of(case.model, case.world_size):
            by_card.setdefault(index, []).append(_Share(case=case, share=_share_of(case)))
    groups: dict[tuple[int, ...], list[int]] = {}
    shares = {tuple(id(item.case) for item in items): items for items in by_card.values()}
    for index, items in by_card.items():
        groups.setdefault(tuple(id(item.case) for item in items), []).append(index)
    for key, indices in groups.items():
        if len(key) > 1:
            yield from _judge_shared(shares[key], indices)


def _judge_shared(items: Sequence[_Share], indices: Sequence[int]) -> Iterator[Finding]:
    names = " and ".join(item.case.model.request.name for item in items)
    places = f"card {indices[0]}" if len(indices) == 1 else f"cards {', '.join(map(str, indices))}"
    known = [item.share for item in items if item.share is not None]
    total = sum(known)
    last = items[-1].case
    if total > 1 + 1e-9:
        yield last.on(
            "cards_overbooked",
            "error",
            f"{names} share {places} and want {total:.2f} of it together; only one of them can run",
            "give each its own cards, or shares that add up to less than 1",
        )
    else:
        yield last.on(
            "cards_shared",
            "note",
            f"{names} share {places}; each must find its share free when it starts",
            "start one after the other, the next when the one before is healthy",
        )


def _cards_of(model: ForeignModel, world_size: int) -> tuple[int, ...]:
    """The cards that the engine will use: the first ones of those it sees."""
    if model.gpus.indices:
        return model.gpus.indices[:world_size]
    if model.gpus.uuids or not (model.gpus.is_all or model.gpus.count):
        return ()
    return tuple(range(min(world_size, model.gpus.count or world_size, MOST_GPUS)))


def _share_of(case: Case) -> float | None:
    if case.is_given("kv_cache_memory_bytes"):
        return None
    default = line_for(case.version).gpu_memory_utilization
    share = case.number("gpu_memory_utilization")
    return default if share is None else share
