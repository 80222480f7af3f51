"""Requests held back by the tokens that an engine's cache has room for: estimate, feedback, and its worth."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_engine import FACTS, Job, KvEngine, simulate

from trimtab.core.state import ReplicaState, ServedModel, ServedReplica
from trimtab.engines.progress import EngineProgress, read_progress
from trimtab.gateway.admission import FairQueue, Waiting
from trimtab.gateway.replicas import ReplicaLoads, TokenNeed
from trimtab.gateway.request import decode_request, read_facts
from trimtab.gateway.token_room import TokenEstimate, TokenRoom
from trimtab.gateway.usage import TokenCount


def make_jobs(count, *, rate, prompt, output, shared=0, spread=0.8, lane="a", seed=1):
    """Requests that come faster than the engine can answer; lengths spread as those of chats are."""
    chance, at_s, jobs = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(rate)
        length = max(2, int(chance.lognormvariate(-spread * spread / 2, spread) * output))
        own = int(chance.lognormvariate(0, 0.5) * prompt) + 1
        jobs.append(Job(at_s=at_s, prompt=shared + own, output=length, shared=shared, lane=lane))
    return jobs


# (requests, cache in tokens, least throughput of the unbounded one's, least goodput, most evictions)
LOADS = {
    "chats": ({"count": 600, "rate": 20, "prompt": 500, "output": 400}, 20_000, 0.95, 1.1, 0.25),
    "documents": ({"count": 300, "rate": 10, "prompt": 6000, "output": 200}, 60_000, 0.95, 0.95, 1.0),
    "long-answers": ({"count": 300, "rate": 20, "prompt": 200, "output": 1500}, 30_000, 0.8, 2.0, 0.25),
    # One long beginning that all have in common, as an agent's tools: it lies in the cache once. To find
    # that out takes the first minute, which is part of this.
    "shared-prefix": (
        {"count": 1500, "rate": 30, "prompt": 200, "output": 200, "shared": 6000}, 30_000, 0.9, 0.95, 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize("load", LOADS)
def test_answers_are_interrupted_less_for_hardly_less_throughput(load):
    """More answers come without a stall, though nobody said how long they are or what prompts share."""
    shape, capacity, throughput, goodput, evictions = LOADS[load]
    free = simulate(make_jobs(**shape), KvEngine(capacity), is_bounded=False)
    held = simulate(make_jobs(**shape), KvEngine(capacity), is_bounded=True)

    assert free.num_preemptions > 0
    assert held.num_preemptions <= evictions * free.num_preemptions
    assert held.output_tokens_per_s >= throughput * free.output_tokens_per_s
    assert held.goodput(gap_s=0.5) >= goodput * free.goodput(gap_s=0.5)


def test_a_flood_of_long_prompts_does_not_fill_the_queue_inside_the_engine():
    """Who asks one question is answered next, though the engine would take all of the flood at once."""

    def waits(*, is_bounded):
        flood = make_jobs(200, rate=1000, prompt=6000, output=200)
        person = [Job(at_s=at_s, prompt=300, output=50, lane="b") for at_s in range(5, 60, 10)]
        simulate(flood + person, KvEngine(60_000), is_bounded=is_bounded)
        return [job.first_s - job.at_s for job in person]

    assert min(waits(is_bounded=False)) > 60
    assert max(waits(is_bounded=True)) < 15


def test_one_request_runs_however_little_room_there_is():
    """A wrong estimate never stops a model: each engine has at least one request."""
    queue = FairQueue(num_slots=8, max_waiting=9)
    queue.token_limit, queue.num_engines = 10.0, 2

    assert [queue.try_begin("k", is_background=False, num_tokens=99.0) for _ in range(3)] == [
        True,
        True,
        False,
    ]


def test_what_is_next_is_not_overtaken_by_what_is_small():
    """A long prompt comes through under a stream of short ones."""
    queue = FairQueue(num_slots=8, max_waiting=9)
    queue.token_limit = 100.0
    queue.begin("a", num_tokens=60.0)
    long = Waiting("b", is_background=False, since_s=0.0, num_tokens=90.0)
    queue.add(long)
    queue.add(Waiting("c", is_background=False, since_s=1.0, num_tokens=1.0))

    assert queue.next(2.0) is None
    assert not queue.try_begin("d", is_background=False, num_tokens=1.0)
    queue.end("a", held_s=1.0, num_tokens=60.0)
    assert queue.next(3.0) is long


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=60))
def test_tokens_inside_are_those_of_who_is_inside(steps):
    """However requests come and go, an empty engine is known to be empty."""
    queue = FairQueue(num_slots=5, max_waiting=0)
    queue.token_limit = 1e6
    inside = []
    for begins, num_tokens in steps:
        if begins and queue.try_begin("k", is_background=False, num_tokens=num_tokens):
            inside.append(num_tokens)
        elif inside and not begins:
            queue.end("k", held_s=1.0, num_tokens=inside.pop())
        assert queue.num_tokens == pytest.approx(sum(inside), abs=1e-3)
        assert queue.num_tokens <= 1e6 or len(inside) == 1
    for num_tokens in inside:
        queue.end("k", held_s=1.0, num_tokens=num_tokens)
    assert queue.num_tokens == 0


def test_answers_are_expected_to_be_as_long_as_those_before():
    """max_tokens is what may come, and rarely what comes."""
    estimate = TokenEstimate()
    facts = read_facts({"max_tokens": 8000})
    assert estimate.guess(facts, num_bytes=400, limit=None, has_answer=True) == 100 + 512
    for _ in range(100):
        estimate.learn(facts, TokenCount(200, 40), num_bytes=400, limit=None)

    assert estimate.guess(facts, num_bytes=4000, limit=None, has_answer=True) == pytest.approx(2040, rel=0.01)
    assert estimate.guess(facts, num_bytes=4000, limit=None, has_answer=False) == pytest.approx(
        2000, rel=0.01
    )
    short = read_facts({"max_tokens": 3})
    assert estimate.guess(short, num_bytes=4000, limit=None, has_answer=True) == pytest.approx(2003, rel=0.01)
    several = read_facts({"n": 4})
    assert estimate.guess(several, num_bytes=4000, limit=None, has_answer=True) == pytest.approx(
        2160, rel=0.01
    )
    assert estimate.guess(facts, num_bytes=40_000, limit=4096, has_answer=True) == 4096


MANY = {
    "choices": ({"n": 100}, 100),
    "prompts": ({"prompt": ["hi"] * 100}, 100),
    "both": ({"prompt": ["hi"] * 10, "n": 3}, 30),
    "token-ids": ({"prompt": [1] * 100}, 1),
    "lists-of-token-ids": ({"prompt": [[1, 2]] * 7}, 7),
    "none": ({"prompt": []}, 1),
    "more-than-any": ({"n": 10**30}, 128),
}


@pytest.mark.parametrize("kind", MANY)
@given(answer=st.integers(1, 4000), prompt=st.integers(1, 4000))
def test_many_answers_at_once_say_how_long_one_is(kind, answer, prompt):
    """Who asks for a hundred at once does not make everybody's answer look a hundred times as long."""
    fields, count = MANY[kind]
    estimate = TokenEstimate()
    several, num_prompts = read_facts(fields), len(fields.get("prompt", ())) or 1
    for _ in range(3):
        tokens = TokenCount(prompt * num_prompts, answer * count)
        estimate.learn(several, tokens, num_bytes=4 * prompt * num_prompts, limit=32768)

    one = estimate.guess(FACTS, num_bytes=400, limit=None, has_answer=True)
    assert one == pytest.approx(100 + answer)
    many = estimate.guess(several, num_bytes=400, limit=None, has_answer=True)
    assert many == pytest.approx(100 + answer * count)
    assert estimate.guess(several, num_bytes=400, limit=500, has_answer=True) <= 500


@given(st.integers(1, 10**30), st.sampled_from([None, 32768]))
def test_an_answer_longer_than_any_is_not_learnt(beyond, limit):
    """One odd figure of an engine does not leave the model one request at a time."""
    estimate = TokenEstimate()
    estimate.learn(FACTS, TokenCount(100, 500), num_bytes=400, limit=limit)
    estimate.learn(FACTS, TokenCount(100, (limit or 2**20) + beyond), num_bytes=400, limit=limit)

    assert estimate.guess(FACTS, num_bytes=400, limit=limit, has_answer=True) == pytest.approx(600)


def test_an_image_counts_as_an_image_and_not_as_its_bytes():
    """A photo does not empty the engine of everybody else."""
    url = "data:image/png;base64," + "A" * 3_000_000
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    estimate = TokenEstimate()
    facts = decode_request(body)

    assert 1000 < estimate.guess(facts, num_bytes=len(body), limit=None, has_answer=False) < 1200
    estimate.learn(facts, TokenCount(1100, 0), num_bytes=len(body), limit=None)
    assert estimate.guess(FACTS, num_bytes=400, limit=None, has_answer=False) == 100


@given(st.binary(max_size=60), st.integers(0, 2**40), st.integers(0, 2**40))
def test_no_answer_makes_the_estimate_nonsense(data, prompt, completion):
    """An engine that tells odd numbers cannot stop its model, or open it wide."""
    estimate = TokenEstimate()
    facts = read_facts({"messages": [{"content": [{"image_url": data.hex()}, 3, None]}]})
    for _ in range(50):
        estimate.learn(facts, TokenCount(prompt, completion), num_bytes=100, limit=4096)
    found = estimate.guess(facts, num_bytes=100, limit=4096, has_answer=True)

    assert 0 < found <= 4096


def reading(*, used_ratio, num_waiting=0, num_preemptions=0, num_running=4):
    return EngineProgress(
        marks=(), num_running=num_running, num_waiting=num_waiting, answer_is_life=False,
        kv_used_ratio=used_ratio, num_preemptions=num_preemptions,
    )  # fmt: skip


def busy_queue(num_tokens):
    queue = FairQueue(num_slots=99, max_waiting=99)
    queue.begin("k", num_tokens=num_tokens)
    queue.add(Waiting("k", is_background=False, since_s=0.0, num_tokens=99.0))
    return queue


def test_an_engine_that_queues_is_sent_as_much_as_it_works_on():
    """The queue goes back to where it can be put in order."""
    room = TokenRoom(1000)
    room.note("r", reading(used_ratio=0.95, num_running=6, num_waiting=6), busy_queue(1000.0), now_s=10.0)

    assert room.limit(1) == 500


def test_an_engine_with_room_left_is_sent_more_while_somebody_waits():
    """Estimates that are too high cost a few seconds, not the whole day."""
    room, queue = TokenRoom(1000), busy_queue(1000.0)
    for now_s in range(0, 60, 2):
        room.note("r", reading(used_ratio=0.5 * room.correction / 2), queue, now_s=now_s)
    assert 3.5 < room.correction < 5

    queue.clear()
    before = room.correction
    for now_s in range(60, 120, 2):
        room.note("r", reading(used_ratio=0.1), queue, now_s=now_s)
    assert room.correction == before


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9), st.floats(0, 9)
        ),
        max_size=80,
    )
)
def test_the_correction_keeps_its_bounds(steps):
    """Whatever an engine tells, the room stays within known multiples of its cache."""
    room, now_s, evicted = TokenRoom(1000), 0.0, 0
    for used_ratio, num_running, num_waiting, num_evicted, pause_s in steps:
        now_s += pause_s
        evicted += num_evicted
        told = reading(
            used_ratio=used_ratio, num_running=num_running, num_waiting=num_waiting, num_preemptions=evicted
        )
        room.note("r", told, busy_queue(500.0), now_s=now_s)
        assert 1000 / 16 <= room.limit(1) <= 32_000


def test_a_reading_without_a_cache_changes_nothing():
    """llama.cpp tells of no cache that its slots share."""
    room = TokenRoom(1000)
    progress = read_progress("llamacpp:requests_deferred 9\n")
    assert progress is not None
    room.note("r", progress, busy_queue(1000.0), now_s=10.0)
    assert room.limit(1) == 1000


def test_what_vllm_tells_of_its_cache_is_read():
    """The fullest rank counts, evictions of all of them."""
    progress = read_progress(
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:num_preemptions_total{engine="1"} 2.0\n'
    )
    assert progress is not None
    assert (progress.kv_used_ratio, progress.num_preemptions) == (0.75, 5)


def test_a_request_goes_to_the_replica_that_has_room_for_it():
    """A long prompt does not go where another one fills the cache already, though both have one request."""
    replicas = tuple(
        ServedReplica(replica_id=f"m-{index}", state=ReplicaState.READY, base_url="http://127.0.0.1:1")
        for index in range(2)
    )
    served_pair = ServedModel(name="m", engine="vllm", state=ReplicaState.READY, replicas=replicas)
    loads = ReplicaLoads()
    need = TokenNeed(num_tokens=600.0, room_tokens=1000.0, num_slots=8)
    loads.begin("m-0", num_tokens=700.0)
    for _ in range(3):
        loads.begin("m-1", num_tokens=10.0)

    found = loads.choose(served_pair, chat_id=None, now_s=0.0, need=need)
    assert found is not None
    assert found.replica_id == "m-1"
    assert loads.choose(served_pair, chat_id=None, now_s=0.0).replica_id == "m-0"
    loads.end("m-0", num_tokens=700.0)
    assert loads.choose(served_pair, chat_id=None, now_s=0.0, need=need).replica_id == "m-0"
