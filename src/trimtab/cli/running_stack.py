"""I/O. The stack that a serving trimtab runs: its plan, and what other commands ask of it."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trimtab import __version__
from trimtab.cli.folders import Folders
from trimtab.cli.vllm_ready import read_programs
from trimtab.core.plan import Plan, SwapPlan
from trimtab.core.state import Action, ReplicaSpec, ReplicaState, ServedModel
from trimtab.engines.progress import EngineProgress
from trimtab.errors import StackFileError, TrimtabError
from trimtab.gateway.app import Gateway
from trimtab.gateway.external import ExternalModels
from trimtab.launcher.boot_times import BootTimes
from trimtab.launcher.calibration import Calibration
from trimtab.launcher.calibration_store import CalibrationStore
from trimtab.launcher.plan_changes import explain_replacements
from trimtab.launcher.reconcile import reconcile
from trimtab.launcher.replan import Replanner
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.state_folder import SupervisorMode
from trimtab.launcher.supervise import Supervisor
from trimtab.launcher.supervision import SupervisorEvent
from trimtab.launcher.swap_policy import Step, choose_first
from trimtab.launcher.swapper import Swapper
from trimtab.runtimes.docker_images import PullProgress
from trimtab.runtimes.routed import RoutedRuntime
from trimtab.stackfile.plan_document import plan_from_document
from trimtab.units import format_bytes

__all__ = ["RunningStack", "ServeListener", "ServeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How to run a plan; ``start_timeout_s`` bounds the time to the first real token."""

    folders: Folders
    mode: SupervisorMode
    start_timeout_s: float


class ServeListener(Protocol):
    """Hears what happens; calls come from the event loop and must return at once."""

    def on_event(self, event: SupervisorEvent) -> None:
        """Something happened to a replica."""

    def on_away(self, model: str, reason: str) -> None:
        """Somebody else's endpoint does not serve its model at the start."""

    def on_ready(self, url: str) -> None:
        """Every model has answered; the endpoint is at ``url``."""

    def on_stopping(self, num_in_flight: int) -> None:
        """A signal came; ``num_in_flight`` requests are being finished."""

    def on_end(self, error: TrimtabError | None) -> None:
        """Serving is over and everything is down; ``error`` is why, None after a signal."""


class RunningStack:
    """Holds the plan that is served now; answers change and drop requests through the supervisor."""

    def __init__(self, plan: Plan, options: ServeOptions, listener: ServeListener) -> None:
        self._plan = plan
        self._options = options
        self._listener = listener
        self._supervisor: Supervisor | None = None
        self._externals: ExternalModels | None = None
        self._gateway: Gateway | None = None
        self._swapper: Swapper | None = None
        self._swapping: asyncio.Future[None] | None = None
        self._boot_times = BootTimes(options.folders.state)
        self._url = ""
        self._say: Callable[[dict[str, Any]], None] | None = None
        self.calibration = Calibration(CalibrationStore(options.folders.state), lambda: self._plan)
        self.replanner = Replanner(read=lambda: self._plan, take=self._take, specs_of=self._specs_of)

    def specs(self) -> tuple[ReplicaSpec, ...]:
        """What the plan of now asks the runtime for."""
        return self._specs_of(self._plan)

    def _take(self, plan: Plan) -> None:
        self._plan = plan

    def attach(self, supervisor: Supervisor, externals: ExternalModels, gateway: Gateway) -> None:
        """What runs the engines, what watches the models of others, and what has the requests."""
        self._supervisor, self._externals, self._gateway = supervisor, externals, gateway
        self._swapper = Swapper(
            supervisor,
            _rules_of(self._plan),
            read_demand=gateway.demand,
            expect_load_s=self._expect_load_s,
            on_change=gateway.note_models,
            tell=self._hear_step,
        )

    def feel_pressure(self) -> None:
        """Requests wait for a model that is not loaded, or one has just become idle."""
        if self._swapper is not None:
            self._swapper.wake()

    def choose_first(self, running: frozenset[str]) -> frozenset[str]:
        """The models to begin with."""
        return choose_first(_rules_of(self._plan), running)

    def metrics(self) -> str:
        """What the gateway counts, as Prometheus text."""
        return "" if self._gateway is None else self._gateway.render_metrics().decode()

    def _expect_load_s(self, model: str) -> float | None:
        """What the slowest of its replicas took before: a wake of those that sleep, else a start."""
        asleep = self._asleep()
        known = [
            self._boot_times.expect_wake_s(spec)
            if spec.replica_id in asleep
            else self._boot_times.expect_s(spec)
            for spec in self.specs()
            if spec.model == model
        ]
        return max((seconds for seconds in known if seconds is not None), default=None)

    def _asleep(self) -> frozenset[str]:
        """The replicas that sleep now."""
        served = () if self._supervisor is None else self._supervisor.snapshot()
        replicas = (one for model in served for one in model.replicas)
        return frozenset(one.replica_id for one in replicas if one.state is ReplicaState.SLEEPING)

    def _hear_step(self, step: Step) -> None:
        if step.kind in ("load", "unload"):
            model = next(item for item in self._plan.models if item.name == step.model)
            self._listener.on_event(
                SupervisorEvent(
                    kind="planned",
                    replica_id=model.replicas[0].replica_id,
                    model=step.model,
                    state=ReplicaState.STOPPED,
                    text=f"{step.kind}: {step.cause}",
                )
            )

    def snapshot(self) -> tuple[ServedModel, ...]:
        """Every model that the gateway serves, as of now; cheap, for every request."""
        own = self._swapper.snapshot() if self._swapper is not None else ()
        if self._externals is None or not self._plan.externals:
            return own
        return (*own, *self._externals.snapshot())

    def serve(self, *, url: str) -> None:
        """From now on requests of other commands can be answered, and models loaded as requests want them."""
        self._url = url
        if self._swapper is not None:
            self._swapping = asyncio.ensure_future(self._swapper.run())

    def close(self) -> None:
        """Nothing is loaded any more; idempotent."""
        if self._swapping is not None:
            self._swapping.cancel()

    def hear(self, event: SupervisorEvent) -> None:
        """Pass an event on to the listener, and to the command that asked for the change."""
        self._listener.on_event(event)
        if self._gateway is not None and self._swapper is not None:
            self._gateway.note_models()
            self._swapper.wake()
        if self._say is not None:
            self._say({"kind": event.kind, "replica_id": event.replica_id, "text": event.text})

    def hear_progress(self, spec: ReplicaSpec, progress: EngineProgress) -> None:
        """Pass on to the gateway what an engine tells of its work."""
        if self._gateway is not None:
            self._gateway.note_engine(spec.model, spec.replica_id, progress)

    def hear_pull(self, progress: PullProgress) -> None:
        """Pass on how far the fetching of an image is, as what the waiting models do."""
        amount = (
            f"{format_bytes(progress.done_bytes)} of {format_bytes(progress.total_bytes)}"
            if progress.total_bytes
            else progress.status
        )
        model = next(
            (model for model in self._plan.models if model.runtime == "docker"), self._plan.models[0]
        )
        self.hear(
            SupervisorEvent(
                kind="loading",
                replica_id=model.replicas[0].replica_id,
                model=model.name,
                state=ReplicaState.STARTING,
                text=f"fetching {progress.image}: {amount}",
            )
        )

    async def answer(self, request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Carry out one request of another command; its result names the actions taken.

        A preview names the actions that the change would take, and takes none; "endpoints" gives the urls
        of models that somebody else runs, "metrics" what the gateway counts.
        """
        if request.get("command") == "endpoints":
            return {"endpoints": {model.name: model.url for model in self._plan.externals}}
        if request.get("command") == "metrics":
            return {"metrics": self.metrics()}
        plan = self._wanted(request)
        if self._supervisor is None or self._swapper is None or not self._url:
            raise TrimtabError("the stack is not serving yet", hint="wait until it is ready: trimtab status")
        if request.get("command") == "preview":
            return self._result(plan, await self._preview(plan, self._supervisor), before=self._plan)
        async with self._swapper.paused():
            return await self._change(plan, self._supervisor, self._swapper, say)

    async def _change(
        self, plan: Plan, supervisor: Supervisor, swapper: Swapper, say: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        self._say = say
        before, self._plan = self._plan, plan
        try:
            resident = swapper.choose_resident(_rules_of(plan))
            actions = await supervisor.change(self._specs_of(plan), resident=resident)
        except StackFileError:
            self._plan = before
            raise
        finally:
            swapper.take_rules(_rules_of(self._plan))
            if self._gateway is not None:
                self._gateway.note_models(is_settled=True)
            self._say = None
        return self._result(plan, actions, before=before)

    async def _preview(self, plan: Plan, supervisor: Supervisor) -> tuple[Action, ...]:
        found = await RoutedRuntime(self._options.folders.state, python=sys.executable).list_replicas()
        ours = frozenset(replica.replica_id for replica in supervisor.replicas())
        specs = self._specs_of(plan)
        if self._swapper is not None:
            resident = self._swapper.choose_resident(_rules_of(plan))
            asleep = {spec.replica_id for spec in specs if spec.sleep is not None} & self._asleep()
            specs = tuple(spec for spec in specs if spec.model in resident or spec.replica_id in asleep)
        return reconcile(specs, found, ours=ours)

    def _result(self, plan: Plan, actions: Iterable[Action], *, before: Plan) -> dict[str, Any]:
        was, is_now = ([model.name for model in one.models] for one in (before, plan))
        return {
            "endpoint": f"{self._url}/v1",
            "models": is_now,
            "added": [name for name in is_now if name not in was],
            "removed": [name for name in was if name not in is_now],
            "actions": [dataclasses.asdict(action) for action in explain_replacements(actions, before, plan)],
        }

    def _wanted(self, request: dict[str, Any]) -> Plan:
        if request.get("command") == "drop":
            return self._without(str(request.get("model")))
        plan = plan_from_document(request.get("plan"), source="the new plan")
        if not plan.fits:
            raise StackFileError("the new plan does not fit, so nothing was changed")
        here, there = self._plan.gateway, plan.gateway
        if plan.externals != self._plan.externals:
            raise StackFileError(
                "models at a url cannot change while trimtab serves", hint="trimtab down, then up again"
            )
        if replace(there, port=here.port) != here:
            names = [item.name for item in dataclasses.fields(here) if item.name != "port"]
            changed = [name for name in names if getattr(here, name) != getattr(there, name)]
            raise StackFileError(
                f"the gateway's settings cannot change while it serves: {', '.join(changed)}",
                hint="trimtab down, then up again",
            )
        return plan

    def _without(self, model: str) -> Plan:
        kept = tuple(item for item in self._plan.models if item.name != model)
        for external in self._plan.externals:
            if external.name == model:
                raise StackFileError(
                    f"{model} is at {external.url}: somebody else runs it, so it cannot be stopped from here",
                    hint="stop it where it runs; to serve it no longer, take it out of the stack file, then"
                    " trimtab down and trimtab up",
                )
        names = ", ".join(item.name for item in self._plan.models) or "none that trimtab runs"
        if len(kept) == len(self._plan.models):
            raise StackFileError(f"no model {model!r} is served", hint=f"served: {names}")
        if not kept and not self._plan.externals:
            raise StackFileError(
                f"{model} is the only model that is served", hint="trimtab down stops everything"
            )
        swap = None if self._plan.swap is None else self._plan.swap.without(model)
        return replace(self._plan, models=kept, swap=swap)

    def _specs_of(self, plan: Plan) -> tuple[ReplicaSpec, ...]:
        options = SpecOptions(
            trimtab_version=__version__,
            dies_with_supervisor=self._options.mode == "foreground",
            vllm_programs=read_programs(plan, self._options.folders),
        )
        return specs_of(plan, options)


def _rules_of(plan: Plan) -> SwapPlan:
    """The plan's own; where all fit at once and stay, one set whose models are all kept."""
    if plan.swap is not None:
        return plan.swap
    names = tuple(model.name for model in plan.models)
    return SwapPlan(resident_sets=(names,), keep_loaded=names)
