"""trimtab commands in processes that need not import trimtab first.

Importing it is most of what a short command costs. A process that has done so forks for each command; the
fork gets its own words, variables, folder and files, and runs ``trimtab.cli.main`` to its real exit code.
Libraries that read variables while they are imported (huggingface_hub) are left to each fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

MODULES = ("main", "deployment", "fetched", "foreign_plan", "plan_output", "preflight", "render_check")
MAX_REQUEST = 1 << 20


class WarmTrimtab:
    """The process that forks, at its first use; it ends with this one."""

    def __init__(self) -> None:
        # Packets: each message comes whole, and the files come with it.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._number = 0

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str | None,
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` of ``python -m trimtab`` with its output caught as text."""
        self._number += 1
        request = json.dumps(
            {"number": self._number, "arguments": arguments, "env": dict(env), "cwd": str(cwd)}
        )
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
            files[0].write(stdin or "")
            files[0].seek(0)
            socket.send_fds(self._socket, [request.encode()], [file.fileno() for file in files])
            pid = self._receive(30)
            try:
                code = self._receive(timeout_s)
            except BaseException as error:
                os.kill(pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(["trimtab", *arguments], timeout_s) from None
                raise
            texts = []
            for file in files[1:]:
                file.seek(0)
                texts.append(file.read())
        return subprocess.CompletedProcess(["trimtab", *arguments], code, *texts)

    def _receive(self, timeout_s: float) -> int:
        """The next word about the command under way; one that a test gave up may still be told of."""
        self._socket.settimeout(timeout_s)
        while True:
            message = self._socket.recv(100)
            assert message, f"the process that forks ended with {self._process.wait(5)}"
            number, word = message.split()
            if int(number) == self._number:
                return int(word)


@cache
def warm_trimtab() -> WarmTrimtab:
    """One per test process."""
    return WarmTrimtab()


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for every request; gives a fork its words, and None at the end."""
    while True:
        data, files, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
        if not data:
            return None
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            connection.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            words: list[str] = request["arguments"]
            return words
        for file in files:
            os.close(file)
        connection.send(b"%d %d" % (request["number"], pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send(b"%d %d" % (request["number"], code))


def become_trimtab() -> None:
    for name in MODULES:
        importlib.import_module(f"trimtab.cli.{name}")
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        sys.argv[1:] = words
        importlib.import_module("trimtab.cli.main").main()


if __name__ == "__main__":
    # As `python -m trimtab` has it, and not the folder of this file.
    sys.path[0] = str(Path.cwd())
    become_trimtab()
