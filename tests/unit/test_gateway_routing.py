"""Where a request goes, and what /v1/models and /health say."""

import pytest

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.access import check_key
from trimtab.gateway.routing import choose_model, render_health, render_models


def served(name, state=ReplicaState.READY, **changes):
    return ServedModel(
        name=name, engine="llama_cpp", state=state, base_url="http://127.0.0.1:1", max_model_len=99, **changes
    )


def test_a_single_model_needs_no_name():
    """A client that names no model gets the only one."""
    assert choose_model(None, (served("a"),)).name == "a"


@pytest.mark.parametrize(
    ("name", "models", "status", "words"),
    [
        pytest.param("x", ("a", "b"), 404, "known: a, b", id="unknown"),
        pytest.param(None, ("a", "b"), 400, "known: a, b", id="unnamed-among-two"),
    ],
)
def test_a_wrong_name_is_answered_with_the_known_ones(name, models, status, words):
    """Whoever mistypes a model's name reads the right ones in the answer."""
    with pytest.raises(GatewayError) as caught:
        choose_model(name, tuple(served(model) for model in models))

    assert caught.value.status == status
    assert words in caught.value.hint


def test_a_model_that_is_not_ready_is_a_503_with_its_reason():
    """A client that comes too early learns why, and that it may come again."""
    with pytest.raises(GatewayError, match="starting: loading") as caught:
        choose_model("a", (served("a", ReplicaState.STARTING, detail="loading"),))

    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        pytest.param(
            "a:instant", "plain", "'a' is of family plain, whose thinking cannot be switched", id="plain"
        ),
        pytest.param("b:instant", "plain", "does not exist", id="no-such-model"),
    ],
)
def test_a_mode_of_a_model_without_modes_is_explained(name, family, words):
    """Whoever learned :instant from one model reads why another has none."""
    with pytest.raises(GatewayError) as caught:
        choose_model(name, (served("a", family=family),))

    assert caught.value.status == 404
    assert words in caught.value.message
    assert ("family" in caught.value.message) == name.startswith("a:")


def test_models_list_the_context_that_really_fits():
    """Clients can read how long a request may be."""
    document = render_models((served("a"),), created_s=7)

    assert document["data"][0]["id"] == "a"
    assert document["data"][0]["max_model_len"] == 99


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (ReplicaState.READY, {"value": "loaded"}),
        (ReplicaState.STARTING, {"value": "loading"}),
        (ReplicaState.BACKING_OFF, {"value": "loading"}),
        (ReplicaState.STOPPED, {"value": "unloaded"}),
        (ReplicaState.FAILED, {"value": "unloaded", "failed": True}),
    ],
)
def test_models_carry_their_state_as_open_webui_reads_it(state, status):
    """A page shows a green dot for a model that answers, and none for one that does not."""
    (entry,) = render_models((served("a", state),), created_s=7)["data"]

    assert (entry["provider"], entry["status"]) == ("llama.cpp", status)


@pytest.mark.parametrize(
    ("states", "status", "word"),
    [
        pytest.param((ReplicaState.READY,), 200, "ok", id="all"),
        pytest.param((ReplicaState.READY, ReplicaState.FAILED), 200, "degraded", id="some"),
        pytest.param((ReplicaState.STARTING,), 503, "unavailable", id="none"),
    ],
)
def test_health_is_good_while_one_model_answers(states, status, word):
    """A load balancer keeps the endpoint while it can answer anything."""
    models = tuple(served(f"m{index}", state) for index, state in enumerate(states))

    code, document = render_health(models, version="1")

    assert (code, document["status"]) == (status, word)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer nope", "Basic good", "good"])
def test_keys_keep_strangers_out(header):
    """With keys set, a request without one of them is a 401."""
    with pytest.raises(GatewayError) as caught:
        check_key(header, ("good", "better"))

    assert caught.value.status == 401


def test_any_set_key_lets_in():
    """Each key works, and with none set everybody may come in."""
    check_key("Bearer better", ("good", "better"))
    check_key(None, ())
