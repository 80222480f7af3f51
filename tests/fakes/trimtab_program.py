"""The whole program as a user runs it: a command in a process of its own, with folders of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from warm_trimtab import warm_trimtab

START_S = 60.0


@dataclass
class Program:
    """trimtab with its state and cache under one folder.

    ``is_warm``: short commands run in forks of a process that has trimtab imported.
    """

    root: Path
    is_warm: bool = False
    ups: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.root / "state" / "trimtab"

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "HF_HUB_OFFLINE": "1",
        }

    def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout_s: float = 90,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        if self.is_warm:
            return warm_trimtab().run(
                arguments, env=self.environment(), cwd=cwd or self.root, stdin=stdin, timeout_s=timeout_s
            )
        argv = [sys.executable, "-m", "trimtab", *arguments]
        return subprocess.run(
            argv,
            check=False,
            env=self.environment(),
            cwd=cwd or self.root,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def run_json(self, *arguments: str) -> Any:
        """Run a command with --json; its whole stdout must be one document."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a foreground `up` and return at once."""
        return self.serve("up", *arguments)

    def serve(self, verb: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a foreground `up` or `gateway` on a free port and return at once."""
        argv = [sys.executable, "-m", "trimtab", verb, "--port", "0", "--json", *arguments]
        process = subprocess.Popen(
            argv,
            env=self.environment(),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.ups.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        """Every living process that belongs to this folder, found by its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                own = process.environ().get("XDG_STATE_HOME") == str(self.root / "state")
                if own and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait_empty(self, timeout_s: float = 20.0) -> None:
        """Wait until no process of this folder is left; says which are when the time is up."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            left = self.processes()
            if not left:
                return
            time.sleep(0.05)
        raise AssertionError(
            f"still running: {[(item.pid, item.cmdline()[:6]) for item in self.processes()]}"
        )

    def close(self) -> None:
        """Stop what a test left, so that no test can disturb the next one."""
        self.run("down", "--timeout", "5")
        for process in self.ups:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        self.wait_empty()


def read_ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The document that a foreground `up --json` prints once it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"up ended with {process.wait()}: {process.stderr.read()}")
    document: dict[str, Any] = json.loads(line)
    return document


def ask(
    endpoint: str, body: dict[str, Any], *, path: str = "/chat/completions", timeout_s: float = 60
) -> Any:
    """POST a request; gives (status, document)."""
    request = urllib.request.Request(
        endpoint + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(endpoint: str, *, max_tokens: int = 8) -> str:
    """One short chat; the text of its answer."""
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": max_tokens}
    status, document = ask(endpoint, body)
    assert status == 200, document
    text: str = document["choices"][0]["message"]["content"]
    return text
