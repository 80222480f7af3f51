"""From what is wanted and what runs to the steps between, with their causes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.launcher.reconcile import config_hash_of, reconcile, render_actions

GOLDEN = Path(__file__).parent.parent / "golden" / "actions"


def spec(replica_id: str, *, config_hash: str = "aaaa", dies_with_supervisor: bool = False) -> ReplicaSpec:
    return ReplicaSpec(
        replica_id=replica_id,
        stack="box",
        model=replica_id.removesuffix("-0"),
        engine="llama_cpp",
        argv=("engine", "--port", "{port}"),
        env=(),
        config_hash=config_hash,
        trimtab_version="0.1.0",
        dies_with_supervisor=dies_with_supervisor,
    )


def observed(replica_id: str, **changes: object) -> ObservedReplica:
    replica = ObservedReplica(
        replica_id=replica_id,
        stack="box",
        model=replica_id.removesuffix("-0"),
        engine="llama_cpp",
        config_hash="aaaa",
        pid=4711,
        port=40001,
        base_url="http://127.0.0.1:40001",
        started_at_s=0.0,
        log_path="",
        dies_with_supervisor=False,
    )
    return replace(replica, **changes)


ENDED = ExitStatus(code=None, signal=9)

CASES = {
    "nothing-runs": ((spec("chat-0"), spec("embed-0")), (), frozenset()),
    "adopt-after-kill": ((spec("chat-0"),), (observed("chat-0"),), frozenset()),
    "keep-what-is-ours": ((spec("chat-0"),), (observed("chat-0"),), frozenset({"chat-0"})),
    "settings-changed": ((spec("chat-0", config_hash="bbbb"),), (observed("chat-0"),), frozenset({"chat-0"})),
    "ended-unseen": ((spec("chat-0"),), (observed("chat-0", exit_status=ENDED),), frozenset()),
    "foreground-leftover": (
        (spec("chat-0", dies_with_supervisor=True),),
        (observed("chat-0", dies_with_supervisor=True),),
        frozenset(),
    ),
    "detached-now-foreground": (
        (spec("chat-0", dies_with_supervisor=True),),
        (observed("chat-0"),),
        frozenset(),
    ),
    "lost-record": ((spec("chat-0"),), (observed("chat-0", config_hash="", port=0),), frozenset()),
    "unwanted": (
        (),
        (
            observed("other-0", stack="old"),
            observed("lost-0", config_hash=""),
            observed("dead-0", exit_status=ExitStatus(code=1)),
        ),
        frozenset(),
    ),
    "everything-at-once": (
        (spec("new-0"), spec("same-0"), spec("changed-0", config_hash="bbbb"), spec("adopted-0")),
        (
            observed("adopted-0"),
            observed("changed-0"),
            observed("same-0"),
            observed("gone-0"),
            observed("dead-0", exit_status=ENDED),
        ),
        frozenset({"same-0", "changed-0"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_actions_are_those_of_the_golden_file(name):
    """What ``up`` prints before it acts: one line per replica, what happens to it and why."""
    wanted, found, ours = CASES[name]
    text = render_actions(reconcile(wanted, found, ours=ours))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TRIMTAB_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_case():
    """No golden file is left behind that nothing checks."""
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def test_nothing_wanted_and_nothing_found_gives_no_actions():
    """An empty stack on a clean machine does nothing."""
    assert reconcile((), ()) == ()
    assert render_actions(()) == ""


def test_replica_wanted_twice_is_a_bug():
    """Two replicas of one id would overwrite each other; that is refused before anything starts."""
    with pytest.raises(ValueError, match="chat-0 appears twice"):
        reconcile((spec("chat-0"), spec("chat-0")), ())


@pytest.mark.parametrize(
    ("argv", "env", "version", "is_same"),
    [
        pytest.param(("e", "--port", "{port}"), (("B", "2"), ("A", "1")), "1", True, id="order-of-env"),
        pytest.param(("e", "--port", "{port}"), (("A", "1"), ("B", "3")), "1", False, id="env-value"),
        pytest.param(("e", "--port", "{port}"), (("A", "1"), ("B", "2")), "2", False, id="engine-version"),
        pytest.param(("e", "--port {port}"), (("A", "1"), ("B", "2")), "1", False, id="words-joined"),
        pytest.param(("e", "--port", "{port}", ""), (("A", "1"), ("B", "2")), "1", False, id="empty-word"),
    ],
)
def test_config_hash_tells_what_needs_a_restart(argv, env, version, is_same):
    """An engine restarts when its command, environment or version changed, and only then."""
    base = config_hash_of(("e", "--port", "{port}"), (("A", "1"), ("B", "2")), "1")
    assert (config_hash_of(argv, env, version) == base) == is_same


def test_config_hash_never_changes_between_releases():
    """An update of trimtab alone does not restart engines: this value is for ever."""
    assert config_hash_of(("engine", "--port", "{port}"), (("A", "1"),), "1.0") == "0d0b17e580ecce7e"
