"""I/O. Runs one plan until told to stop: engines under a supervisor, one gateway in front.

The order on the way up: state folder, gateway (a taken port is found before any engine starts),
engines, first real token. On the way down: refuse new requests, let those inside finish, stop the
engines, give the folder back. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trimtab import __version__
from trimtab.cli.folders import keys_path, request_log_path, usage_path
from trimtab.cli.running_stack import RunningStack, ServeListener, ServeOptions
from trimtab.cli.upstream_keys import read_upstream_keys
from trimtab.core.plan import Plan
from trimtab.core.state import ReplicaState
from trimtab.engines import describe_boot, describe_stall, explain_exit
from trimtab.errors import TrimtabError
from trimtab.gateway.app import Gateway
from trimtab.gateway.external import ExternalModels
from trimtab.gateway.key_ring import KeyRing
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.request_log import RequestLog
from trimtab.gateway.usage_log import UsageLog
from trimtab.launcher.boot_times import BootTimes
from trimtab.launcher.control import ControlServer
from trimtab.launcher.log_rotation import keep_logs_small
from trimtab.launcher.sleep_check import CardsNow
from trimtab.launcher.state_folder import HeldStateFolder, StateFolder
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.probes.generation import EngineProbe
from trimtab.probes.gpus import probe_gpus
from trimtab.probes.host import probe_host
from trimtab.runtimes.docker_images import PullProgress
from trimtab.runtimes.routed import RoutedRuntime

__all__ = ["run_serve", "serve_plan"]

# How long requests inside may go on after the first signal, and an engine after its SIGTERM.
_DRAIN_S: Final = 30.0
_ENGINE_GRACE_S: Final = 10.0


def run_serve(plan: Plan, options: ServeOptions, listener: ServeListener) -> None:
    """Run ``serve_plan`` in an event loop of its own; what it raises is told to the listener first."""
    _raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(serve_plan(plan, options, listener))
    except TrimtabError as error:
        listener.on_end(error)
        raise
    listener.on_end(None)


def _raise_descriptor_limit() -> None:
    """As many open connections as the system lets this user have; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - absent on platforms it has no wheel for
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def serve_plan(plan: Plan, options: ServeOptions, listener: ServeListener) -> None:
    """Bring the plan up, serve until SIGINT or SIGTERM, take everything down; returns when it is gone."""
    with _signals() as stop_signals, _held(plan, options) as held:
        work = asyncio.ensure_future(_serve(plan, options, listener, held, stop_signals))
        # A signal during start must not wait for the model to load.
        first_signal = asyncio.ensure_future(stop_signals.first())
        await asyncio.wait({work, first_signal}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not stop_signals.is_serving:
            work.cancel()
        first_signal.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _serve(
    plan: Plan,
    options: ServeOptions,
    listener: ServeListener,
    held: HeldStateFolder,
    stop_signals: _StopSignals,
) -> None:
    running = RunningStack(plan, options, listener)
    more = replace(_more_parts(plan, options), on_pressure=running.feel_pressure)
    loop = asyncio.get_running_loop()

    def hear_pull(progress: PullProgress) -> None:
        loop.call_soon_threadsafe(running.hear_pull, progress)  # it comes from the thread that pulls

    runtime = RoutedRuntime(options.folders.state, python=sys.executable, on_pull=hear_pull)
    async with EngineProbe() as probe:
        known = _knowledge(options, running)
        supervisor = Supervisor(running.specs(), runtime, probe, known=known, on_event=running.hear)
        gateway = Gateway(plan.gateway, running.snapshot, version=__version__, more=more)
        externals = ExternalModels(plan.externals, more.upstream_keys)
        running.attach(supervisor, externals, gateway)
        control = ControlServer(options.folders.state, running.answer)
        rotation = asyncio.ensure_future(keep_logs_small(StateFolder(options.folders.state).logs))
        try:
            await control.start()  # before anything loads: what stands in its way is told at once
            await gateway.start()
            held.publish(host=plan.gateway.host, port=gateway.port)
            await externals.start(gateway.traffic_of)
            for model in externals.snapshot():
                if model.state is not ReplicaState.READY:
                    listener.on_away(model.name, model.detail or "no answer yet")
            await supervisor.start(running.choose_first)
            await supervisor.wait_ready(options.start_timeout_s)
            running.serve(url=gateway.url)
            stop_signals.is_serving = True
            listener.on_ready(gateway.url)
            await stop_signals.first()
            listener.on_stopping(gateway.num_in_flight)
            await _drain(gateway, stop_signals)
        finally:
            rotation.cancel()
            running.close()
            await control.stop()
            await gateway.stop()
            await externals.close()
            await supervisor.stop(_ENGINE_GRACE_S)
            if more.usage is not None:
                more.usage.close()
            if more.request_log is not None:
                more.request_log.close()


def _more_parts(plan: Plan, options: ServeOptions) -> GatewayMore:
    """Keys of clients and of endpoints, and the logs of usage and of requests."""
    upstream_keys = read_upstream_keys(plan.externals)
    keys = KeyRing(keys_path(options.folders))
    return GatewayMore(
        keys=keys,
        usage=UsageLog(usage_path(options.folders)),
        request_log=RequestLog(request_log_path(options.folders)) if plan.gateway.log_requests else None,
        upstream_keys=upstream_keys,
    )


def _knowledge(options: ServeOptions, running: RunningStack) -> EngineKnowledge:
    """What the supervisor is told of engines: their logs, what starts took, the cards, smaller plans."""
    return EngineKnowledge(
        explain_exit=explain_exit,
        describe_boot=describe_boot,
        describe_stall=describe_stall,
        boot_times=BootTimes(options.folders.state),
        read_cards=lambda: probe_gpus().processes,
        read_card_state=_read_card_state,
        read_free_ram=lambda: probe_host().available_ram_bytes,
        note_progress=running.hear_progress,
        note_start=running.calibration.note_start,
        replan=running.replanner.replan,
    )


def _read_card_state() -> CardsNow:
    probe = probe_gpus()
    free = {gpu.index: gpu.free_bytes for gpu in probe.gpus if gpu.free_bytes is not None}
    return CardsNow(processes=probe.processes, free_bytes=free)


async def _drain(gateway: Gateway, stop_signals: _StopSignals) -> None:
    draining = asyncio.ensure_future(gateway.drain(_DRAIN_S))
    impatient = asyncio.ensure_future(stop_signals.second())
    await asyncio.wait({draining, impatient}, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, impatient):
        task.cancel()


@contextlib.contextmanager
def _held(plan: Plan, options: ServeOptions) -> Iterator[HeldStateFolder]:
    held = StateFolder(options.folders.state).hold(mode=options.mode, stack=plan.stack)
    try:
        yield held
    finally:
        held.release()


class _StopSignals:
    """Counts SIGINT and SIGTERM: the first asks to stop, the second to hurry."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._second = asyncio.Event()
        self.is_serving = False

    def receive(self) -> None:
        (self._second if self._first.is_set() else self._first).set()

    async def first(self) -> None:
        await self._first.wait()

    async def second(self) -> None:
        await self._second.wait()


@contextlib.contextmanager
def _signals() -> Iterator[_StopSignals]:
    stop_signals = _StopSignals()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop_signals.receive)
    try:
        yield stop_signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
