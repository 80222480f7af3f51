"""The real Open WebUI of scripts/open_webui.py for tests: its server, a signed-in person, its page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[2] / "scripts"
PAGE = Path(__file__).with_name("webui_page.py")
START_S = 180.0
# What docs/open-webui.md tells an operator to set, besides the address and the key.
TASK_HEADERS = {"0": {"headers": {"X-OpenWebUI-Task": "{{TASK}}"}}}


def install() -> tuple[Path | None, str]:
    """The environment's folder, or None and why this machine cannot have it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "open_webui.py"), "install"],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    if done.returncode == 3:
        return None, done.stderr.strip().splitlines()[-1]
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()), ""


def find_chromium() -> str | None:
    """A Chromium of the system."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@dataclass
class OpenWebUi:
    """A running server in front of ``endpoint``; everything it writes is under ``root``."""

    folder: Path
    root: Path
    endpoint: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)
    token: str = ""

    def start(self) -> OpenWebUi:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.root.mkdir(parents=True, exist_ok=True)
        self._log = (self.root / "server.log").open("wb")
        self._process = subprocess.Popen(
            [str(self.folder / "bin" / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=self._environment(), cwd=self.root, start_new_session=True,
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._wait_healthy()
        person = {"name": "Ann", "email": "ann@example.com", "password": "of-a-test-1"}
        self.token = self.ask("/api/v1/auths/signup", person)["token"]
        # Otherwise the notes of the release cover the page.
        version = next((self.folder / "lib").glob("*/site-packages/open_webui-*.dist-info")).stem.partition(
            "-"
        )[2]
        self.ask("/api/v1/users/user/settings/update", {"ui": {"version": version}})
        return self

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
        self._log.close()

    def ask(self, path: str, document: Any = None, *, timeout_s: float = 120) -> Any:
        """Ask its API as the person who signed in; the answer's document."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def chat(
        self, chromium: str, *, model: str, text: str, within_s: float = 90, has_title: bool = True,
        control: tuple[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """One chat in the page, as webui_page.py tells it."""
        wish = {"url": self.url, "token": self.token, "chromium": chromium, "model": model, "text": text,
                "within_s": within_s, "has_title": has_title, "control": control}  # fmt: skip
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), str(PAGE)],
            input=json.dumps(wish), capture_output=True, text=True, check=False, timeout=within_s * 3,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def chat_begin(self, model: str) -> subprocess.Popen[bytes]:
        """A chat that is not waited for: the process ends with 0 when it was answered."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi."}]})
        return subprocess.Popen(
            ["curl", "--silent", "--fail", "--max-time", "120", "--output", os.devnull,
             "--header", "Content-Type: application/json", "--header", f"Authorization: Bearer {self.token}",
             "--data", body, f"{self.url}/api/chat/completions"],
            start_new_session=True,
        )  # fmt: skip

    def _wait_healthy(self) -> None:
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                self.ask("/health", timeout_s=5)
            except (urllib.error.URLError, OSError):
                assert self._process.poll() is None, (self.root / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline_s, (self.root / "server.log").read_text()[-3000:]
                time.sleep(0.2)
            else:
                return

    def _environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        data = self.root / "data"
        data.mkdir(exist_ok=True)
        return inherited | {
            "DATA_DIR": str(data),
            "STATIC_DIR": str(data / "static"),
            "WEBUI_SECRET_KEY": "of-a-test-of-a-test-of-a-test-of-a-test",
            "OFFLINE_MODE": "true",
            "ANONYMIZED_TELEMETRY": "false",
            "RAG_EMBEDDING_MODEL": "",
            "USE_SLIM_DOCKER": "true",
            "ENABLE_OLLAMA_API": "false",
            "ENABLE_PERSISTENT_CONFIG": "false",
            "OPENAI_API_BASE_URLS": self.endpoint,
            "OPENAI_API_KEYS": self.key,
            "OPENAI_API_CONFIGS": json.dumps(TASK_HEADERS),
        } | self.environment  # fmt: skip
