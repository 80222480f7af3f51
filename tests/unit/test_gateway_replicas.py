"""Which replica of a model a request goes to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.state import ReplicaState, ServedModel, ServedReplica
from trimtab.gateway.replicas import ReplicaLoads, find_beginning, find_chat_id
from trimtab.gateway.routing import render_health

STATES = st.lists(st.sampled_from(list(ReplicaState)), min_size=1, max_size=6)
CHATS = st.none() | st.text(max_size=5)


def model_of(states):
    replicas = tuple(
        ServedReplica(
            replica_id=f"m-{index}",
            state=state,
            base_url=f"http://127.0.0.1:{index}" if state is ReplicaState.READY else None,
        )
        for index, state in enumerate(states)
    )
    return ServedModel(name="m", engine="vllm", state=ReplicaState.READY, replicas=replicas)


READY = ReplicaState.READY


@given(STATES, st.lists(CHATS, max_size=20), st.frozensets(st.integers(0, 5)), st.data())
def test_only_replicas_that_are_ready_and_not_dropped_are_chosen(states, chats, gone, data):
    """No request is sent to an engine that loads, failed, or has just refused it."""
    loads, model = ReplicaLoads(), model_of(states)
    dropped = frozenset(f"m-{index}" for index in gone)
    wanted = {f"m-{index}" for index, state in enumerate(states) if state is READY} - dropped
    running = []

    for chat in chats:
        chosen = loads.choose(model, chat_id=chat, now_s=0, dropped=dropped)
        assert (chosen.replica_id in wanted) if wanted else chosen is None
        if chosen is not None:
            loads.begin(chosen.replica_id)
            running.append(chosen.replica_id)
        if running and data.draw(st.booleans()):
            loads.end(running.pop())
        if wanted and data.draw(st.booleans()):
            loads.shun(data.draw(st.sampled_from(sorted(wanted))), now_s=data.draw(st.floats(-2, 2)))


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**32))
def test_requests_spread_within_one(num_replicas, num_requests, seed):
    """No replica works while another has nothing to do."""
    loads, model = ReplicaLoads(seed=seed), model_of([READY] * num_replicas)
    for _ in range(num_requests):
        loads.begin(loads.choose(model, chat_id=None, now_s=0).replica_id)
    counts = [loads.in_flight_of(f"m-{index}") for index in range(num_replicas)]

    assert sum(counts) == num_requests
    assert max(counts) - min(counts) <= 1


@given(st.integers(2, 6), st.lists(st.text(max_size=3), max_size=60))
def test_chats_never_load_a_replica_above_its_share(num_replicas, chats):
    """One busy chat does not keep an engine to itself while others are idle."""
    loads, model = ReplicaLoads(), model_of([READY] * num_replicas)
    for count, chat in enumerate(chats, start=1):
        loads.begin(loads.choose(model, chat_id=chat, now_s=0).replica_id)
        busiest = max(loads.in_flight_of(f"m-{index}") for index in range(num_replicas))
        assert busiest <= 1.25 * count / num_replicas + 1


@given(st.integers(2, 6), st.text(max_size=8), st.integers(0, 5))
def test_a_chat_stays_with_its_replica_while_that_is_there(num_replicas, chat, other):
    """The engine that has a chat in its prefix cache gets the chat's next message."""
    loads, states = ReplicaLoads(), [READY] * num_replicas
    first = loads.choose(model_of(states), chat_id=chat, now_s=0)
    if other < num_replicas and f"m-{other}" != first.replica_id:
        states[other] = ReplicaState.FAILED

    assert loads.choose(model_of(states), chat_id=chat, now_s=9) == first


def test_one_after_the_other_takes_turns():
    """Idle replicas share single requests evenly, so that all stay warm."""
    loads, model = ReplicaLoads(seed=7), model_of([READY] * 3)
    chosen = [loads.choose(model, chat_id=None, now_s=0).replica_id for _ in range(6)]

    assert sorted(chosen) == sorted(["m-0", "m-1", "m-2"] * 2)


def test_a_replica_that_broke_off_is_left_alone_for_a_moment():
    """The next requests do not run into the engine that has just died."""
    loads, model = ReplicaLoads(), model_of([READY] * 2)
    loads.shun("m-0", now_s=5.0)
    soon = {loads.choose(model, chat_id=None, now_s=5.9).replica_id for _ in range(4)}
    later = {loads.choose(model, chat_id=None, now_s=6.1).replica_id for _ in range(4)}

    assert (soon, later) == ({"m-1"}, {"m-0", "m-1"})


@pytest.mark.parametrize(
    ("fields", "document", "chat_id"),
    [
        pytest.param({b"x-openwebui-chat-id": b"c1"}, {"user": "u"}, "c1", id="open-webui"),
        pytest.param({b"x-openwebui-chat-id": b""}, {"user": "u"}, "u", id="empty-header"),
        pytest.param({}, {"metadata": {"chat_id": "c2"}, "user": "u"}, "c2", id="metadata"),
        pytest.param({}, {"prompt_cache_key": "k", "user": "u"}, "k", id="cache-key"),
        pytest.param({}, {"user": 7, "metadata": []}, None, id="odd"),
        pytest.param({}, {}, None, id="none"),
    ],
)
def test_a_chat_is_known_by_what_clients_send(fields, document, chat_id):
    """Open WebUI's header and the protocol's own fields name the chat."""
    assert find_chat_id(fields, document) == chat_id


def turns(*texts):
    """A chat of a user's texts, each answered but the last."""
    messages = [{"role": "system", "content": "s"}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]
    return {"messages": messages[:-1]}


def begin_of(*texts):
    return find_beginning(turns(*texts), num_bytes=100)


def test_a_chat_without_a_name_goes_on_where_it_was():
    """What was computed for its first turns is used for the next, also where no client names its chats."""
    loads, model = ReplicaLoads(), model_of([READY] * 3)
    for text, replica in (("a", "m-2"), ("b", "m-1")):
        loads.remember(begin_of(text), replica)

    for _ in range(4):
        for text, replica in (("a", "m-2"), ("b", "m-1")):
            found = begin_of(text, "more")
            assert loads.choose(model, chat_id=None, now_s=0, beginning=found).replica_id == replica
    new = [loads.choose(model, chat_id=None, now_s=0, beginning=begin_of("a")).replica_id for _ in range(3)]
    assert len(set(new)) == 3  # the same first words of others are spread
    loads.shun("m-2", now_s=0)
    found = begin_of("a", "more")
    assert loads.choose(model, chat_id=None, now_s=0, beginning=found).replica_id != "m-2"


def test_a_replica_with_more_than_its_share_is_not_waited_for():
    """A cached prefix is no reason to queue behind everybody."""
    loads, model = ReplicaLoads(), model_of([READY] * 2)
    loads.remember(begin_of("a"), "m-0")
    for _ in range(3):
        loads.begin("m-0")

    found = begin_of("a", "more")
    assert loads.choose(model, chat_id=None, now_s=0, beginning=found).replica_id == "m-1"


@pytest.mark.parametrize(
    ("document", "num_bytes"),
    [
        pytest.param({}, 1, id="no-chat"),
        pytest.param({"messages": [None, {"role": 3}]}, 1, id="odd"),
        pytest.param({"messages": [{"role": "system"}]}, 1, id="nobody"),
        pytest.param({"messages": [{"role": "user", "content": "x"}]}, 2**21, id="huge"),
    ],
)
def test_what_has_no_beginning_has_none(document, num_bytes):
    """Odd bodies are routed as before."""
    assert find_beginning(document, num_bytes=num_bytes) is None


def test_remembered_conversations_are_bounded():
    """Millions of chats do not fill the memory."""
    loads = ReplicaLoads()
    for index in range(8200):
        loads.remember(begin_of(str(index)), "m-0")

    assert len(loads._remembered) == 8192


def test_health_shows_each_replica():
    """Whoever watches sees that one of two is down."""
    status, document = render_health((model_of([READY, ReplicaState.STARTING]),), version="1")

    assert (status, document["status"]) == (200, "degraded")
    assert document["models"]["m"]["replicas"]["m-1"]["state"] == "starting"


def test_health_tells_how_many_requests_are_worked_on_at_once():
    """A meter that sends more measures a queue; replicas that do not answer work on none."""
    for states, expected in (([READY, READY], 8), ([READY, ReplicaState.STARTING], 4)):
        told = render_health((replace(model_of(states), concurrency=4),), version="1")[1]
        assert told["models"]["m"]["concurrency"] == expected
    assert render_health((model_of([READY]),), version="1")[1]["models"]["m"]["concurrency"] is None
