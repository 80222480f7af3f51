"""Pure. From a plan to what a runtime is asked to start."""

from __future__ import annotations

from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan
from trimtab.core.state import ReplicaSpec
from trimtab.launcher.reconcile import config_hash_of

__all__ = ["specs_of"]


def specs_of(plan: Plan, *, trimtab_version: str, dies_with_supervisor: bool) -> tuple[ReplicaSpec, ...]:
    """One spec per planned replica, in plan order."""
    return tuple(
        _spec_of(plan, model, replica, trimtab_version=trimtab_version, tied=dies_with_supervisor)
        for model in plan.models
        for replica in model.replicas
    )


def _spec_of(
    plan: Plan, model: ModelPlan, replica: ReplicaPlan, *, trimtab_version: str, tied: bool
) -> ReplicaSpec:
    return ReplicaSpec(
        replica_id=replica.replica_id,
        stack=plan.stack,
        model=model.name,
        engine=model.engine,
        argv=model.argv,
        env=model.env,
        config_hash=config_hash_of(model.argv, model.env, model.engine_version),
        trimtab_version=trimtab_version,
        predicted_bytes=replica.host.requested_bytes if replica.host else None,
        max_model_len=model.max_model_len,
        dies_with_supervisor=tied,
        has_embeddings=any(item.name == "embeddings" and item.value is True for item in model.settings),
    )
