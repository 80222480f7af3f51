"""A supervisor as a program: holds a state folder and supervises one fake engine until SIGTERM.

    supervising_program.py STATE_DIR foreground|detached [knobs of the fake engine ...]

Prints one line per event: its kind and its text. Exit code 0 after SIGTERM, 5 when the engine cannot be
started, 4 when the folder is taken.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from trimtab.core.state import PORT_PLACEHOLDER, ReplicaSpec
from trimtab.errors import TrimtabError
from trimtab.launcher.reconcile import config_hash_of
from trimtab.launcher.state_folder import StateFolder
from trimtab.launcher.supervise import EngineKnowledge, SupervisionPolicy, Supervisor, SupervisorEvent
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


def fake_spec(
    *knobs: str, replica_id: str = "fake-0", detached: bool = False, **changes: object
) -> ReplicaSpec:
    """A replica that is the fake engine with these knobs."""
    argv = (sys.executable, "-S", str(FAKE_ENGINE), "--port", PORT_PLACEHOLDER, *knobs)
    values: dict[str, object] = {
        "replica_id": replica_id,
        "stack": "tests",
        "model": replica_id.removesuffix("-0"),
        "engine": "fake",
        "argv": argv,
        "env": (),
        "config_hash": config_hash_of(argv, (), "1"),
        "trimtab_version": "0",
        "dies_with_supervisor": not detached,
    }
    return ReplicaSpec(**{**values, **changes})


def print_event(event: SupervisorEvent) -> None:
    print(event.kind, event.text, flush=True)


async def supervise(state_dir: Path, mode: str, knobs: list[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runtime = LocalProcessRuntime(state_dir, python=sys.executable)
    spec = fake_spec(*knobs, detached=mode == "detached")
    with StateFolder(state_dir).hold(mode=mode, stack="tests"):
        async with EngineProbe() as probe:
            supervisor = Supervisor(
                (spec,),
                runtime,
                probe,
                known=EngineKnowledge(explain_exit=lambda *_: None),
                on_event=print_event,
                policy=SupervisionPolicy(liveness_interval_s=0.2),
            )
            try:
                await supervisor.start()
                await supervisor.wait_ready(30)
                await stop.wait()
            finally:
                await supervisor.stop(2)


def main() -> int:
    try:
        asyncio.run(supervise(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except TrimtabError as error:
        print("error", error, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
