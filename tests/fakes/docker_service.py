"""Docker's own daemon for tests, with everything it writes in one temporary folder.

Debian's and Ubuntu's docker.io brings it (`apt-get install --no-install-recommends docker.io`). It is only
started where no other Docker runs: two would share one bridge.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from docker import APIClient
from podman_service import IMAGE, PYTHON, make_root_tar

BRIDGE = "docker0"


def reason_to_skip() -> str | None:
    """Why no Docker daemon can be started here, or None."""
    missing = [name for name in ("dockerd", "containerd", "runc") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install --no-install-recommends docker.io"
    if os.geteuid() != 0:
        return "a Docker daemon needs root"
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        return "another Docker daemon uses this machine's bridge"
    return None


class DockerService:
    """A running daemon; ``address`` is what DOCKER_HOST is set to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix://{folder / 'd.sock'}"
        self._start()

    def _start(self) -> None:
        folder = self._folder
        with (folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("dockerd", "--storage-driver", "vfs", "--host", self.address),
                    *("--data-root", str(folder / "data"), "--exec-root", str(folder / "run")),
                    *("--pidfile", str(folder / "pid")),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_until_it_answers()

    def restart(self) -> None:
        """End the daemon, and its containers with it, and start it anew."""
        self._process.terminate()
        self._process.wait(60)
        self._start()

    def _wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + 60
        while not (self._folder / "d.sock").exists():
            assert self._process.poll() is None, (self._folder / "service.log").read_text()
            assert time.monotonic() < deadline_s, "the Docker daemon made no socket within 60 s"
            time.sleep(0.1)
        with self._connect() as api:
            assert api.ping()

    def _connect(self) -> APIClient:
        return APIClient(base_url=self.address, version="auto", timeout=60)

    def import_image(self) -> None:
        """Make IMAGE; its entry point is this interpreter."""
        repository, tag = IMAGE.rsplit(":", 1)
        change = f'ENTRYPOINT ["{PYTHON}"]'
        with self._connect() as api:
            api.import_image_from_data(make_root_tar(), repository=repository, tag=tag, changes=[change])

    def close(self) -> None:
        """Remove every container, end the daemon, take its bridge away."""
        with self._connect() as api:
            for entry in api.containers(all=True):
                api.remove_container(entry["Id"], force=True)
        self._process.terminate()
        self._process.wait(60)
        if shutil.which("ip"):  # else the bridge stays, and with it the word that Docker was here
            subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)
