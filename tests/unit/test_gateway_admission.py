"""Who waits for a busy model, and who is next."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.gateway.access import check_key
from trimtab.gateway.admission import AdmissionSettings, FairQueue, Waiting
from trimtab.gateway.admission_lane import find_lane, is_background
from trimtab.gateway.http_message import Request
from trimtab.gateway.key_ring import KeyRing
from trimtab.gateway.keys import ApiKey, hash_key, render_keys

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["come", "end", "leave", "next"])),
    max_size=80,
)


def waiting(lane, *, since_s=0.0, is_background=False):
    return Waiting(lane, is_background=is_background, since_s=since_s)


@given(STEPS, st.integers(1, 4), st.integers(0, 5))
def test_slots_and_places_are_never_exceeded_and_nobody_is_lost(steps, num_slots, max_waiting):
    """Whatever comes and goes, an engine gets no more than it can work on, and each request one fate."""
    queue = FairQueue(num_slots=num_slots, max_waiting=max_waiting)
    running, inside, fates, num_come = [], [], Counter(), 0
    for now_s, (lane, yields, step) in enumerate(steps):
        if step == "come":
            num_come += 1
            if queue.try_begin(lane, is_background=yields):
                running.append(lane)
            else:
                one = waiting(lane, since_s=now_s, is_background=yields)
                inside.append(one)
                out = queue.add(one)
                if out is not None:
                    inside.remove(out)
                    fates["out"] += 1
        elif step == "end" and running:
            queue.end(running.pop(0), held_s=1.0)
            fates["ended"] += 1
        elif step == "leave" and inside:
            queue.remove(inside.pop())
            fates["left"] += 1
        elif step == "next" and (one := queue.next(now_s)) is not None:
            inside.remove(one)
            running.append(one.lane)
        assert (queue.num_running, queue.num_waiting) == (len(running), len(inside))
        assert len(running) <= num_slots
        assert len(inside) <= max_waiting
    assert num_come == sum(fates.values()) + len(running) + len(inside)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 3))
def test_everybody_comes_through_in_the_end(kinds, num_slots):
    """No request waits for ever, a background call neither."""
    queue = FairQueue(num_slots=num_slots, max_waiting=99)
    for index, yields in enumerate(kinds):
        queue.add(waiting(index % 3, is_background=yields))
    num_through = 0
    for now_s in range(1, 40):
        while (one := queue.next(now_s)) is not None:
            queue.end(one.lane, held_s=1.0)
            num_through += 1

    assert num_through == len(kinds)


@given(st.integers(1, 4), st.lists(st.floats(0.1, 10), min_size=60, max_size=60))
def test_two_floods_get_the_same_time(num_slots, service_s):
    """A key whose requests are long gets no more of the engine than one whose requests are short."""
    queue = FairQueue(num_slots=num_slots, max_waiting=999)
    for lane in "ab" * 60:
        queue.add(waiting(lane))
    had = {"a": 0.0, "b": 0.0}
    ends, now_s = [], 0.0
    for held_s in service_s:
        while len(ends) < num_slots:
            one = queue.next(now_s)
            long_s = held_s * (3 if one.lane == "a" else 1)
            ends.append((now_s + long_s, long_s, one.lane))
        ends.sort()
        now_s, long_s, lane = ends.pop(0)
        had[lane] += long_s
        queue.end(lane, held_s=long_s)

    # One service of the longest on each slot may be still to be made up for.
    assert abs(had["a"] - had["b"]) <= (num_slots + 1) * 3 * max(service_s)


def test_a_flood_does_not_hold_up_another_key():
    """Whoever asks one question is next, however many a script has put in before."""
    queue = FairQueue(num_slots=1, max_waiting=99)
    queue.try_begin("flood", is_background=False)
    for _ in range(50):
        queue.add(waiting("flood"))
    asked = waiting("person", since_s=1.0)
    queue.add(asked)
    queue.end("flood", held_s=1.0)

    assert queue.next(1.0) is asked


def test_a_flood_pushes_out_only_itself():
    """A full queue has a place for a key that has none in it yet."""
    queue = FairQueue(num_slots=1, max_waiting=3)
    queue.try_begin("flood", is_background=False)
    assert [queue.add(waiting("flood")) for _ in range(3)] == [None] * 3

    assert queue.add(waiting("person")).lane == "flood"
    assert queue.add(waiting("flood")).lane == "flood"
    assert queue.num_waiting == 3


def test_a_background_call_lets_the_message_pass_that_it_overtook():
    """The title of a chat does not come before its answer, on an engine that does one at a time."""
    queue = FairQueue(num_slots=1, max_waiting=9)
    assert not queue.try_begin("k", is_background=True)
    title = waiting("k", since_s=0.0, is_background=True)
    queue.add(title)
    assert queue.next(0.0) is None
    message = waiting("k", since_s=0.1)
    queue.add(message)

    assert queue.next(0.1) is message
    queue.end("k", held_s=5.0)
    assert queue.next(5.1) is title


def test_a_background_call_leaves_a_slot_free():
    """Two titles do not fill an engine of two slots."""
    queue = FairQueue(num_slots=2, max_waiting=9)

    assert queue.try_begin("k", is_background=True)
    assert not queue.try_begin("k", is_background=True)
    queue.add(waiting("k", is_background=True))
    assert queue.next(9.0) is None
    assert queue.next(31.0) is not None


def test_when_to_come_again_follows_the_queue():
    """Retry-After tells about how long those before need."""
    queue = FairQueue(num_slots=2, max_waiting=99)
    assert queue.retry_after_s() == 1
    queue.try_begin("k", is_background=False)
    queue.end("k", held_s=4.0)
    for _ in range(9):
        queue.add(waiting("k"))

    assert queue.retry_after_s() == 20


def test_idle_keys_are_forgotten():
    """A million clients that came once take no memory."""
    queue = FairQueue(num_slots=1, max_waiting=9)
    for index in range(5000):
        queue.try_begin(index, is_background=False)
        queue.end(index, held_s=0.001)

    assert len(queue._lanes) <= 1025


def test_settings_bound_the_queue_by_slots():
    """More slots, more may wait for them."""
    assert AdmissionSettings().max_waiting(2) == 1024
    assert AdmissionSettings(min_waiting=4, waiting_per_slot=8).max_waiting(2) == 16


@pytest.mark.parametrize(
    ("fields", "has_keys", "lane"),
    [
        pytest.param({b"authorization": b"Bearer a"}, True, b"a", id="key"),
        pytest.param(
            {b"authorization": b"Bearer a", b"x-openwebui-user-id": b"u"}, True, b"a", id="key-first"
        ),
        pytest.param(
            {b"authorization": b"Bearer a", b"x-openwebui-user-id": b"u"}, False, b"u", id="user-if-open"
        ),
        pytest.param({}, False, "10.0.0.7", id="address"),
    ],
)
def test_requests_take_turns_by_key_user_or_address(fields, has_keys, lane):
    """With keys a client cannot get more turns by calling itself many users."""
    client = SimpleNamespace(peer="10.0.0.7")
    found = find_lane(Request(fields=fields), client, has_keys=has_keys)

    assert found == lane


SPELLINGS = [
    {b"authorization": b"Bearer k"},
    {b"authorization": b"bearer k"},
    {b"authorization": b"BEARER    k  "},
    {b"authorization": b"beaRer \tk\t"},
    {b"authorization": "Bearer \u00a0k\u2003".encode()},
    {b"x-api-key": b"k"},
    {b"x-api-key": b" k "},
]


@pytest.mark.parametrize("fields", SPELLINGS, ids=range(len(SPELLINGS)))
@pytest.mark.parametrize("has_keys", [True, False])
def test_a_key_has_one_turn_however_it_is_spelled(tmp_path, fields, has_keys):
    """Every spelling that is let in is the same client: of a stack's key, of the file's, and of none."""
    client = SimpleNamespace(peer="10.0.0.7")
    authorization = Request(fields=fields).header("authorization")
    if authorization is not None:
        check_key(authorization, ("k",))
    assert find_lane(Request(fields=fields), client, has_keys=has_keys) == b"k"

    known = ApiKey(name="me", sha256=hash_key("k"), created_at_s=0.0)
    (tmp_path / "keys.json").write_text(render_keys([known]))
    key = KeyRing(tmp_path / "keys.json").find(authorization or "Bearer k")
    assert find_lane(Request(fields=fields, key=key), client, has_keys=has_keys) == "me"


@pytest.mark.parametrize(
    ("fields", "yields"),
    [
        pytest.param({b"x-openwebui-task": b"title_generation"}, True, id="task"),
        pytest.param({b"x-openwebui-task": b""}, False, id="person"),
        pytest.param({b"x-trimtab-priority": b"Background"}, True, id="said"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_a_background_call_is_known_by_its_headers(fields, yields):
    """Programs can say that their request can wait."""
    assert is_background(Request(fields=fields), {"messages": []}) is yields


def prioritised(lane, priority, *, since_s=0.0):
    return Waiting(lane, is_background=False, since_s=since_s, priority=priority)


LANES = {"low": -5, "usual": 0, "more": 1, "high": 5}


@given(st.lists(st.tuples(st.sampled_from(sorted(LANES)), st.floats(0, 29)), min_size=1, max_size=30))
def test_higher_priorities_are_next(arrivals):
    """What came within the same half minute is let through by priority, and within one by who came first."""
    queue = FairQueue(num_slots=1, max_waiting=99)
    for lane, since_s in sorted(arrivals, key=lambda one: one[1]):
        queue.add(prioritised(lane, LANES[lane], since_s=since_s))
    order = []
    while (one := queue.next(29.0)) is not None:
        order.append((-one.priority, one.since_s))
        queue.end(one.lane, held_s=1.0)

    assert len(order) == len(arrivals)
    assert order == sorted(order)


@given(st.integers(-5, 4), st.integers(1, 3), st.floats(0.5, 20), st.integers(1, 4))
def test_no_priority_starves(priority, num_slots, service_s, num_rich):
    """Under a flood of higher priorities one of the lowest is let through at least every 30 s per step."""
    queue = FairQueue(num_slots=num_slots, max_waiting=9999)
    through_s, ends, now_s = [], [], 0.0
    for _ in range(3):
        queue.add(prioritised("poor", priority, since_s=0.0))
    while len(through_s) < 3:
        for index in range(num_rich):
            while sum(one.lane == f"rich{index}" for one in queue.waiting()) < 2:
                queue.add(prioritised(f"rich{index}", 5, since_s=now_s))
        while (one := queue.next(now_s)) is not None:
            ends.append((now_s + service_s, one.lane))
            if one.lane == "poor":
                through_s.append(now_s)
        now_s, lane = min(ends)
        ends.remove((now_s, lane))
        queue.end(lane, held_s=service_s)
        assert now_s < 10_000

    # Once it counts as high as they do it is one lane among theirs, and the one that had least.
    bound_s = 30 * (5 - priority) + (num_rich + 2) * service_s + num_slots * service_s
    assert all(after - before <= bound_s for before, after in zip([0.0, *through_s], through_s, strict=False))


@given(
    st.integers(0, 2),
    st.integers(1, 3),
    st.floats(0.5, 20),
    st.integers(1, 6),
    st.floats(0, 4000),
    st.integers(0, 2),
)
def test_new_lanes_without_end_starve_nobody(above, num_slots, service_s, num_new, had_s, num_inside):
    """Who had much, or has some inside that never ends, is let through though each request is a new key's."""
    queue = FairQueue(num_slots=num_slots + num_inside, max_waiting=9999)
    queue.begin("old")
    queue.end("old", held_s=had_s)
    for _ in range(num_inside):
        queue.begin("old")
    old = prioritised("old", 0)
    for lane in range(num_new):
        queue.add(prioritised(lane, above))
    queue.add(old)
    ends, now_s, num_come = [], 0.0, num_new
    while True:
        while (one := queue.next(now_s)) is not None and one is not old:
            ends.append((now_s + service_s, one.lane))
            queue.add(prioritised(num_come, above, since_s=now_s))
            num_come += 1
        if one is old:
            break
        now_s, lane = min(ends)
        ends.remove((now_s, lane))
        queue.end(lane, held_s=service_s)
        assert now_s < 10_000

    # A minute, what it had more than they, what may be made up for others, and those who came before it.
    assert now_s <= 60 + min(had_s, 300) + 60 + (num_new + 1) * service_s


@given(st.floats(0.5, 20), st.floats(0, 4000), st.integers(0, 3))
def test_a_flood_that_had_less_does_not_hold_up_a_new_key_for_long(service_s, had_s, above):
    """However much a third has had meanwhile, a new key is let through before a whole queue of another."""
    queue = FairQueue(num_slots=1, max_waiting=9999)
    for _ in range(2000):
        queue.add(waiting("flood"))
    queue.add(prioritised("rich", above))
    queue.begin("rich")
    queue.end("rich", held_s=had_s)
    new, now_s = None, 0.0
    while (one := queue.next(now_s)) is not new or new is None:
        now_s += service_s
        queue.end(one.lane, held_s=service_s)
        if new is None and one.lane == "rich":
            new, came_s = waiting("new", since_s=now_s), now_s
            queue.add(new)

    assert now_s - came_s <= 60 + 2 * service_s


def test_a_background_call_does_not_starve_behind_its_own_key():
    """After its half minute it is first come, first served with the chats of its own key."""
    queue = FairQueue(num_slots=1, max_waiting=9)
    title = waiting("k", since_s=0.0, is_background=True)
    queue.add(title)
    queue.add(waiting("k", since_s=29.0))
    queue.add(waiting("k", since_s=31.0))
    order = []
    for now_s in (29.5, 32.0, 33.0):
        order.append(queue.next(now_s).since_s)
        queue.end("k", held_s=0.5)

    assert order == [29.0, 0.0, 31.0]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 40)), min_size=1, max_size=6))
def test_a_held_background_call_is_looked_at_when_it_may_go_on(arrivals):
    """On two slots of which one stays taken each goes on when it has waited half a minute."""
    queue = FairQueue(num_slots=2, max_waiting=9)
    queue.begin("long")
    for lane, since_s in sorted(arrivals, key=lambda one: one[1]):
        queue.add(waiting(lane, since_s=since_s, is_background=True))
    now_s = 40.0
    for _ in range(4 * len(arrivals)):
        while (one := queue.next(now_s)) is not None:
            assert now_s - one.since_s <= 30.001 or now_s == 40.0
            queue.end(one.lane, held_s=0.0)
        now_s += queue.held_for_s(now_s) + 1e-6 if queue.num_waiting else 0.0

    assert queue.num_waiting == 0


def test_waiting_long_among_equals_is_no_priority():
    """A flood that has waited for minutes does not come before somebody who asks one question."""
    queue = FairQueue(num_slots=1, max_waiting=99)
    queue.begin("flood")
    for _ in range(5):
        queue.add(waiting("flood", since_s=0.0))
    asked = waiting("person", since_s=299.0)
    queue.add(asked)
    queue.end("flood", held_s=300.0)

    assert queue.next(300.0) is asked


def test_a_background_call_of_a_high_key_still_yields():
    """Titles of an important key do not come before the chats of others."""
    queue = FairQueue(num_slots=1, max_waiting=99)
    queue.add(Waiting("high", is_background=True, since_s=0.0, priority=5))
    chat = prioritised("usual", 0, since_s=5.0)
    queue.add(chat)

    assert queue.next(6.0) is chat
