"""Pure. One model wished on vLLM: what was asked, what the checkpoint is, which version accounts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.core.plan import PlanWarning
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.errors import StackFileError
from trimtab.planner.calibration import CalibrationRecord
from trimtab.planner.speed_calibration import SpeedRecord
from trimtab.planner.vllm_versions import VersionMatch

__all__ = ["VllmWish", "check_wish"]

# Key of the stack file → the engine argument that means the same; both with different values contradict.
_SAME_MEANING: Final = (("context", "max_model_len"), ("concurrency", "max_num_seqs"))
# Arguments that the runtime decides: the gateway in front would not find the engine.
_RESERVED: Final = ("host", "port", "served_model_name", "model", "api_key", "uds")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmWish:
    """A request with the facts of its checkpoint.

    ``checkpoint`` is what the engine is told to load (repo id or folder); ``chosen_version`` is False
    where the version is the planner's default; ``warnings`` come from reading the facts (a mask that
    was inferred, a hub that did not answer). ``calibration`` is what earlier starts measured here,
    ``speeds`` how fast they were.
    """

    request: ModelRequest
    checkpoint: str
    facts: ModelFacts
    parts: ModelParts
    version: VersionMatch
    warnings: tuple[PlanWarning, ...] = ()
    calibration: tuple[CalibrationRecord, ...] = ()
    speeds: tuple[SpeedRecord, ...] = ()

    @property
    def name(self) -> str:
        """The served name."""
        return self.request.name

    @property
    def pins(self) -> Mapping[str, SettingValue]:
        """Engine arguments that are obeyed as written."""
        return dict(self.request.engine_args)

    @property
    def context_tokens(self) -> int | None:
        """Tokens one request must be able to use; None lets the planner choose."""
        return self.request.context

    @property
    def is_fully_pinned(self) -> bool:
        """Length, sequences, batch and budget are all given: a configuration to judge, not to choose.

        What it leaves out then has the engine's default, as it would have had on a command line.
        """
        pins = self.pins
        has_length = self.context_tokens is not None or "max_model_len" in pins
        has_sequences = self.request.concurrency is not None or "max_num_seqs" in pins
        has_budget = bool({"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(pins))
        return has_length and has_sequences and has_budget and "max_num_batched_tokens" in pins

    @property
    def card_indices(self) -> tuple[int, ...] | None:
        """Cards that the request names, None for any."""
        text = self.request.gpus
        return None if text is None else tuple(dict.fromkeys(int(part) for part in text.split(",")))


def check_wish(wish: VllmWish) -> None:
    """StackFileError where a request contradicts itself or takes what is the runtime's to decide."""
    where = f"models.{wish.name}"
    for key, argument in _SAME_MEANING:
        asked, pinned = getattr(wish.request, key), wish.pins.get(argument)
        if asked is not None and isinstance(pinned, int) and not isinstance(pinned, bool) and asked != pinned:
            raise StackFileError(
                f"{where}: {key} {asked} and engine_args.{argument} {pinned} contradict each other",
                hint=f"write one of them; {key} becomes {argument}",
            )
    for argument in _RESERVED:
        if argument in wish.pins:
            raise StackFileError(
                f"{where}.engine_args.{argument}: trimtab decides this, so that its gateway finds the engine",
                hint="the endpoint's own address and keys are set under gateway",
            )
    if {"gpu_memory_utilization", "kv_cache_memory_bytes"} <= set(wish.pins):
        raise StackFileError(
            f"{where}: engine_args pin gpu_memory_utilization and kv_cache_memory_bytes, and vLLM ignores the"
            " first then",
            hint="pin one of them",
        )
