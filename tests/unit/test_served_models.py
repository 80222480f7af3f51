"""What the gateway is told about the replicas of a model."""

from trimtab.core.state import ObservedReplica, ReplicaSpec, ReplicaState
from trimtab.launcher.supervision import Supervised, to_served_models


def replica(replica_id, state, *, restarts=0):
    spec = ReplicaSpec(
        replica_id=replica_id, stack="s", model="m", engine="vllm", argv=(), env=(), config_hash="h",
        trimtab_version="1", concurrency=8, kv_cache_tokens=900)  # fmt: skip
    observed = ObservedReplica(
        replica_id=replica_id, stack="s", model="m", engine="vllm", config_hash="h", pid=1, port=1,
        base_url=f"http://{replica_id}", started_at_s=0, log_path="", dies_with_supervisor=True)  # fmt: skip
    return Supervised(spec=spec, state=state, observed=observed, detail=state.value, restarts=restarts)


def test_all_replicas_of_a_model_are_served():
    """A model on two cards is answered by both."""
    (model,) = to_served_models(
        (replica("a", ReplicaState.STARTING, restarts=1), replica("b", ReplicaState.READY, restarts=2))
    )

    assert (model.state, model.base_url, model.restarts, model.concurrency) == (
        ReplicaState.READY, "http://b", 3, 8)  # fmt: skip
    assert model.kv_cache_tokens == 900
    assert [(one.replica_id, one.base_url, one.restarts) for one in model.replicas] == [
        ("a", None, 1),
        ("b", "http://b", 2),
    ]


def test_a_replica_that_stops_is_not_asked():
    """Requests go elsewhere as soon as a replica is told to stop."""
    (model,) = to_served_models((replica("a", ReplicaState.STOPPING),))

    assert (model.base_url, model.replicas[0].base_url) == (None, None)
