"""Pure. What a request waits for in an engine under a closed loop: first token, then each further one.

All users decode together; each of their prompts is computed once per round and holds the others up
for its time. Beyond the sequences that fit, users wait for a slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.planner.latency_profile import SpeedProfile
from trimtab.planner.latency_steps import (
    CardRates,
    CardTiming,
    EngineTiming,
    Load,
    estimate_mixed_s,
    estimate_own_prefill_s,
    estimate_prefill_s,
    estimate_step_terms,
    least,
    most,
)

__all__ = ["Demand", "RequestTimes", "estimate_request_times", "estimate_slots"]

_KNEE = 8.0
"""Sharpness of the change from "all users run" to "users wait for a slot"."""
_BUSIEST = 0.98
"""Share of time on prompts beyond which the queue formula isn't followed."""
_USUAL_ROUNDS = 10.0
"""Requests per user in the measurements the burst share was fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A closed loop of ``concurrency`` users, each sending ``rounds`` requests one after the other.

    ``cached_tokens`` of the prompt need no computing; ``shared_tokens`` of the context are one prefix
    that all users share, read once a step; ``chunk_tokens`` is the engine's tokens per step;
    ``slots`` sequences fit at once; ``ranks`` and ``groups`` as in ``Load``; ``stages`` are pipeline
    stages, each with its own share of the sequences; ``has_server`` is 1, or 0 for the bare engine.
    """

    input_tokens: float
    output_tokens: float
    concurrency: float
    cached_tokens: float
    shared_tokens: float
    chunk_tokens: float
    slots: float
    ranks: float
    groups: float
    stages: float
    rounds: float
    has_server: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Seconds. ``step_terms`` make up one decode step; ``queue_s`` is the wait for a slot.

    ``running`` is how many sequences decode together; ``ttft_s`` includes the queue.
    """

    ttft_s: float
    tpot_s: float
    prefill_s: float
    queue_s: float
    running: float
    step_terms: dict[str, float]


def estimate_request_times(
    profile: SpeedProfile, demand: Demand, card: CardRates, timing: CardTiming, engine: EngineTiming
) -> RequestTimes:
    """Mean TTFT and TPOT of a request in the loop."""
    running = (demand.concurrency**-_KNEE + demand.slots**-_KNEE) ** (-1.0 / _KNEE)
    load = Load(
        sequences=most(running / demand.stages, 1.0),
        context_tokens=demand.input_tokens + demand.output_tokens / 2.0 - demand.shared_tokens,
        shared_tokens=demand.shared_tokens,
        tensor_parallel_size=demand.ranks,
        attention_groups=demand.groups,
    )
    terms = estimate_step_terms(profile, load, card, timing, engine)
    step = sum(terms.values())
    fresh = most(demand.input_tokens - demand.cached_tokens, 1.0)
    prompt = (fresh, demand.cached_tokens, demand.chunk_tokens)
    matmuls, attention = estimate_prefill_s(profile, prompt, card, timing, demand.ranks)
    added = estimate_mixed_s(
        profile, (fresh, demand.chunk_tokens), load.sequences, card, timing, demand.ranks
    )
    mixed = (added + attention / demand.groups) / demand.stages * engine.mixed_share
    one_round = demand.output_tokens * step + running * mixed
    own = (
        demand.has_server * (engine.request_s + engine.prompt_token_s * demand.input_tokens)
        + estimate_own_prefill_s(profile, (fresh, demand.chunk_tokens), matmuls + attention, timing)
        + engine.steps_waited * step
    )
    alone = (matmuls + attention / demand.groups) / demand.stages
    others = _wait_for_prompts(running, alone, demand.output_tokens * step, demand.rounds, engine)
    queue = most(demand.concurrency / running - 1.0, 0.0) * one_round
    return RequestTimes(
        ttft_s=own + others + queue,
        tpot_s=step + (running - 1.0) * mixed / demand.output_tokens,
        prefill_s=matmuls + attention,
        queue_s=queue,
        running=running,
        step_terms=terms,
    )


def estimate_slots(
    profile: SpeedProfile, cache_bytes: float, tokens: float, groups: float, occupancy: float
) -> float:
    """Sequences of ``tokens`` that fit a rank's ``cache_bytes``, over all ``groups`` of ranks; 1 at least."""
    held = tokens * occupancy
    windowed = least(held, profile.window_tokens) * profile.window_kv_bytes_per_token
    each = held * profile.kv_bytes_per_token + windowed + profile.state_bytes / 2.0
    return most(groups * cache_bytes / most(each, 1.0), 1.0)


def _wait_for_prompts(
    running: float, prompt_s: float, decode_s: float, rounds: float, engine: EngineTiming
) -> float:
    """The opening burst's share of the mean, and the queue behind other users' prompts.

    The queue is that of a single server with fixed service time, never more than half of everybody
    else's prompts.
    """
    burst = engine.burst_share * (_USUAL_ROUNDS / rounds) * (running - 1.0) * prompt_s
    busy = running * prompt_s / (decode_s + running * prompt_s) * _BUSIEST
    queue = engine.queue_share * busy / (1.0 - busy) * prompt_s
    longest = 0.5 * running * prompt_s
    return burst + queue * longest / (queue + longest)
