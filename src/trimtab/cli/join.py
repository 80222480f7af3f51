"""I/O. A second ``up -d`` of what already runs: recognise it, wait for it, change nothing."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

from trimtab import __version__
from trimtab.cli.folders import Folders
from trimtab.cli.health import read_health
from trimtab.core.plan import Plan
from trimtab.errors import EngineStartError
from trimtab.gateway.app import url_of
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.state_folder import SupervisorRecord
from trimtab.runtimes.routed import RoutedRuntime

__all__ = ["serves_plan", "wait_until_ready"]

_POLL_S: Final = 0.1
_AT_REST = frozenset({"stopped", "starting", "stopping", "sleeping"})


async def serves_plan(record: SupervisorRecord, plan: Plan, folders: Folders) -> bool:
    """Whether the running supervisor serves this very plan in the background.

    An engine that is just being restarted counts: what is there must match, what is missing may.
    """
    wanted_port = plan.gateway.port
    if record.mode != "detached" or record.stack != plan.stack or wanted_port not in (0, record.port):
        return False
    served = (await read_health(url_of(record.host, record.port))).get("models", {})
    if set(served) != {*(model.name for model in plan.models), *(model.name for model in plan.externals)}:
        return False
    specs = specs_of(plan, SpecOptions(trimtab_version=__version__, dies_with_supervisor=False))
    wanted = {(spec.replica_id, spec.config_hash) for spec in specs}
    observed = await RoutedRuntime(folders.state, python=sys.executable).list_replicas()
    # A replica that is just being replaced may be seen without its record, hence without a hash.
    return {(item.replica_id, item.config_hash) for item in observed if item.config_hash} <= wanted


async def wait_until_ready(record: SupervisorRecord, plan: Plan, *, timeout_s: float) -> str:
    """The endpoint's root once every model of the plan answers; EngineStartError when time is up."""
    url = url_of(record.host, record.port)
    deadline_s = time.monotonic() + timeout_s
    names = {model.name for model in plan.models}
    while time.monotonic() < deadline_s:
        models = (await read_health(url)).get("models", {})
        states = {name: _state_of(models.get(name, {})) for name in names}
        if set(states.values()) == {"ready"}:
            return url
        if "failed" in states.values():
            detail = "; ".join(str(models[name]["detail"]) for name in names if states[name] == "failed")
            raise EngineStartError(
                f"it runs (pid {record.pid}), but a model has failed: {detail}", hint="trimtab down"
            )
        await asyncio.sleep(_POLL_S)
    raise EngineStartError(
        f"it runs (pid {record.pid}), but was not ready within {timeout_s:g} s", hint="trimtab logs"
    )


def _state_of(model: dict[str, Any]) -> Any:
    """A model that is loaded on demand is as ready as it will be."""
    is_at_rest = model.get("on_demand") and model.get("state") in _AT_REST
    return "ready" if is_at_rest else model.get("state")
