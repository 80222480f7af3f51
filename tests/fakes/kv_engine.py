"""An engine with a KV cache that runs out, as vLLM's scheduler has it, in simulated time; and its gateway.

Simulated: steps that decode one token of each running request, prompts computed in chunks within a budget,
the latest request evicted when no block is free, and computed anew from its first token later. What decides
who goes in is the gateway's own queue, estimate and room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trimtab.engines.progress import EngineProgress
from trimtab.gateway.admission import FairQueue, Waiting
from trimtab.gateway.request import decode_request
from trimtab.gateway.token_room import TokenEstimate, TokenRoom
from trimtab.gateway.usage import TokenCount

FACTS = decode_request(b"{}")
BLOCK = 16
BUDGET = 2048
# About an 8B model on one card: 20 ms a step, 10,000 prompt tokens a second.
STEP_S = 0.02
PREFILL_S = 1e-4
READ_EVERY_S = 1.5
BYTES_PER_TOKEN = 4


@dataclass(eq=False)
class Job:
    """One request. Of its prompt ``shared`` tokens are those of every other one."""

    at_s: float
    prompt: int
    output: int
    lane: str = "a"
    shared: int = 0
    computed: int = 0
    made: int = 0
    begun_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    longest_gap_s: float = 0.0
    cost: float = 0.0

    @property
    def num_blocks(self) -> int:
        """Blocks of its own that it needs for what is computed and one token more."""
        return -(-(max(0, self.computed - self.shared) + 1) // BLOCK)


@dataclass
class KvEngine:
    """``capacity`` tokens; the latest is evicted when they run out."""

    capacity: int
    max_num_seqs: int = 256
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    num_preemptions: int = 0

    @property
    def used(self) -> int:
        """Blocks in use; a shared prefix counts once."""
        shared = max((job.shared for job in self.running), default=0)
        return sum(job.num_blocks for job in self.running) + shared // BLOCK

    @property
    def num_blocks(self) -> int:
        return self.capacity // BLOCK

    def progress(self) -> EngineProgress:
        """What its counters say."""
        return EngineProgress(
            marks=(),
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            answer_is_life=False,
            kv_used_ratio=self.used / self.num_blocks,
            num_preemptions=self.num_preemptions,
        )

    def step(self) -> tuple[float, list[Job]]:
        """One step: its seconds, and the jobs that got a token."""
        budget = BUDGET
        got: list[Job] = []
        num_evicted, used = self.num_preemptions, self.used
        for job in list(self.running):
            if job not in self.running:
                continue
            chunk = min(budget, max(1, job.prompt + job.made - job.computed))
            before, blocks = job.computed, job.num_blocks
            job.computed += chunk
            used += job.num_blocks - blocks
            while used > self.num_blocks and self.running:
                victim = self.running.pop()
                victim.computed = 0
                self.num_preemptions += 1
                self.waiting.insert(0, victim)
                if victim in got:
                    got.remove(victim)
                used = self.used
                if victim is job:
                    break
            if job not in self.running:
                continue
            budget -= job.computed - before
            if job.computed >= job.prompt + job.made:
                got.append(job)
        if self.num_preemptions == num_evicted:
            budget = self._admit(budget, got)
        for job in got:
            job.made += 1
        return STEP_S + PREFILL_S * (BUDGET - budget), got

    def _admit(self, budget: int, got: list[Job]) -> int:
        used = self.used
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            length = job.prompt + job.made
            # The whole prompt must fit (vLLM since #37307).
            if used + -(-max(0, length - job.shared) // BLOCK) > self.num_blocks:
                break
            self.waiting.pop(0)
            self.running.append(job)
            # What others have of the prefix is not computed again.
            job.computed = job.shared if len(self.running) > 1 else 0
            chunk = min(budget, length - job.computed)
            job.computed += chunk
            used = self.used
            budget -= chunk
            if job.computed >= length:
                got.append(job)
        return budget


@dataclass
class Outcome:
    """What became of all jobs."""

    jobs: list[Job]
    duration_s: float
    num_preemptions: int
    correction: float

    @property
    def output_tokens_per_s(self) -> float:
        return sum(job.output for job in self.jobs) / self.duration_s

    def goodput(self, *, gap_s: float) -> float:
        """Requests per second none of whose tokens came later than that after the one before."""
        return sum(job.longest_gap_s <= gap_s for job in self.jobs) / self.duration_s


def simulate(jobs: list[Job], engine: KvEngine, *, is_bounded: bool) -> Outcome:
    """Let all jobs through the gateway and the engine."""
    queue = FairQueue(num_slots=engine.max_num_seqs, max_waiting=10**6)
    estimate, room = TokenEstimate(), TokenRoom(engine.capacity)
    to_come = sorted(jobs, key=lambda job: job.at_s)
    now_s = read_at_s = 0.0
    num_done = 0
    while num_done < len(jobs):
        if not (engine.running or engine.waiting or queue.num_waiting) and to_come:
            now_s = max(now_s, to_come[0].at_s)
        while to_come and to_come[0].at_s <= now_s:
            job = to_come.pop(0)
            num_bytes = job.prompt * BYTES_PER_TOKEN
            job.cost = estimate.guess(FACTS, num_bytes=num_bytes, limit=None, has_answer=True)
            queue.add(
                Waiting(job.lane, is_background=False, since_s=job.at_s, num_tokens=job.cost, reply=job)
            )
        if is_bounded:
            queue.token_limit = room.limit(1)
        while (one := queue.next(now_s)) is not None:
            one.reply.begun_s = now_s
            engine.waiting.append(one.reply)
        took_s, got = engine.step()
        now_s += took_s
        for job in got:
            if math.isnan(job.first_s):
                job.first_s = now_s
            else:
                job.longest_gap_s = max(job.longest_gap_s, now_s - job.last_s)
            job.last_s = now_s
            if job.made >= job.output:
                engine.running.remove(job)
                queue.end(job.lane, held_s=now_s - job.begun_s, num_tokens=job.cost)
                tokens = TokenCount(job.prompt, job.output)
                estimate.learn(FACTS, tokens, num_bytes=job.prompt * BYTES_PER_TOKEN, limit=None)
                num_done += 1
        if now_s >= read_at_s:
            read_at_s = now_s + READ_EVERY_S
            room.note("one", engine.progress(), queue, now_s=now_s)
    return Outcome(jobs, now_s, engine.num_preemptions, room.correction)
