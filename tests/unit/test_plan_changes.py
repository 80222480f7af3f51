"""Why a replica is replaced, told as what changed in its plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan, Setting
from trimtab.core.stack import GatewaySettings
from trimtab.core.state import Action
from trimtab.launcher.plan_changes import explain_replacements

HASHES = "settings changed: aaaa is now bbbb"
MODEL = ModelPlan(
    name="m",
    checkpoint="a.gguf",
    fits=True,
    engine="llama_cpp",
    engine_version="1",
    runtime="process",
    max_model_len=2048,
    settings=(
        Setting(name="n_ctx", value=2048, origin="asked"),
        Setting(name="n_threads", value=2, origin="measured"),
    ),
    replicas=(ReplicaPlan(replica_id="m/0", gpus=(0,)),),
)


def plan_of(model: ModelPlan) -> Plan:
    """A plan of one model."""
    return Plan(stack="s", fits=True, models=(model,), gateway=GatewaySettings())


def cause(wanted: ModelPlan, *, kind: str = "replace", replica_id: str = "m/0") -> str:
    """The cause of one action between MODEL and ``wanted``."""
    action = Action(kind=kind, replica_id=replica_id, cause=HASHES)
    return explain_replacements((action,), plan_of(MODEL), plan_of(wanted))[0].cause


def threads(value: object) -> tuple[Setting, ...]:
    """The settings with another number of threads."""
    return (MODEL.settings[0], replace(MODEL.settings[1], value=value))


LONGER = (replace(MODEL.settings[0], value=4096), MODEL.settings[1])


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        pytest.param(
            replace(MODEL, max_model_len=4096, settings=LONGER), "context 2,048 → 4,096", id="context-once"
        ),
        pytest.param(replace(MODEL, settings=threads(4)), "n_threads 2 → 4", id="setting"),
        pytest.param(replace(MODEL, settings=MODEL.settings[:1]), "n_threads 2 → unset", id="gone"),
        pytest.param(replace(MODEL, env=(("A", "1"),)), "A unset → 1", id="environment"),
        pytest.param(replace(MODEL, checkpoint="b.gguf"), "checkpoint a.gguf → b.gguf", id="checkpoint"),
        pytest.param(
            replace(MODEL, replicas=(ReplicaPlan(replica_id="m/0", gpus=(1, 2)),)),
            "cards 0 → 1,2",
            id="cards",
        ),
        pytest.param(
            replace(
                MODEL,
                checkpoint="b",
                engine_version="2",
                runtime="docker",
                max_model_len=1,
                settings=threads(9),
            ),
            "checkpoint a.gguf → b, engine version 1 → 2, runtime process → docker, context 2,048 → 1,"
            " 1 more",
            id="many",
        ),
        pytest.param(MODEL, HASHES, id="nothing-to-see"),
    ],
)
def test_what_changed_is_named(wanted, words):
    """Whoever edits a file reads the edit again, not two fingerprints."""
    assert cause(wanted) == words


def test_other_actions_keep_their_cause():
    """Only a replacement is explained by a difference."""
    changed = replace(MODEL, settings=threads(4))

    assert cause(changed, kind="keep") == HASHES
    assert cause(changed, replica_id="new/0") == HASHES
