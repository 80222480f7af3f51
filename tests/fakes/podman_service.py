"""A real Docker API for tests: podman's service on a socket of its own, and an image made of this machine.

Debian's and Ubuntu's podman and runc are all it needs (`apt-get install --no-install-recommends podman
runc`, 8 s). Storage, run folder and socket lie in one temporary folder; nothing of the machine's own
podman is seen or touched. The image holds only empty folders: what a container runs is mounted into it,
read-only, from this machine, so that an import takes no time and a container no disk.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from trimtab.core.container import ContainerSpec, Mount, PublishedPort

IMAGE = "localhost/trimtab-tests:latest"
# What listens inside the containers; outside each has a port of its own.
CONTAINER_PORT = 8000
PYTHON = os.path.realpath(sys.executable)
FAKES = Path(__file__).parent


def reason_to_skip() -> str | None:
    """Why containers cannot be run here, or None."""
    missing = [name for name in ("podman", "runc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: apt-get install --no-install-recommends podman runc"
    if os.geteuid() != 0:
        return "podman's service with a bridge network needs root here"
    return None


def podman_version() -> tuple[int, ...]:
    """Major and minor version of the installed podman."""
    words = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=True).stdout.split()
    return tuple(int(part) for part in words[-1].split(".")[:2])


class PodmanService:
    """A running service; ``address`` is what DOCKER_HOST is set to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix://{folder / 'api.sock'}"
        self._environ = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        (folder / "containers.conf").write_text(render_configuration())
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        )
        self._start()

    def _start(self) -> None:
        with (self._folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["podman", "system", "service", "--time", "0", self.address],
                env=self._environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_for_socket()

    def restart(self) -> None:
        """End the service, not its containers, and start it anew."""
        self._process.terminate()
        self._process.wait(20)
        (self._folder / "api.sock").unlink(missing_ok=True)
        self._start()

    def _wait_for_socket(self) -> None:
        deadline_s = time.monotonic() + 20
        while not (self._folder / "api.sock").exists():
            assert self._process.poll() is None, (self._folder / "service.log").read_text()
            assert time.monotonic() < deadline_s, "podman's service made no socket within 20 s"
            time.sleep(0.05)

    def import_image(self) -> None:
        """Make IMAGE; its entry point is this interpreter."""
        self.run("import", "--change", f'ENTRYPOINT ["{PYTHON}"]', "-", IMAGE, stdin=make_root_tar())

    def run(self, *words: str, stdin: bytes | None = None) -> str:
        """What a podman command on the service's storage prints."""
        done = subprocess.run(
            ["podman", *words], env=self._environ, input=stdin, capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode()

    def close(self) -> None:
        """Remove every container, end the service."""
        self.run("rm", "--all", "--force", "--time", "0")
        self._process.terminate()
        self._process.wait(20)


def render_configuration() -> str:
    """Limits must be named: podman's defaults are higher than what a sandbox may hand on."""
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    num_processes = min(32_768, resource.getrlimit(resource.RLIMIT_NPROC)[1] % 2**63)
    return (
        f'[containers]\ndefault_ulimits = ["nofile={num_files}:{num_files}", '
        f'"nproc={num_processes}:{num_processes}"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\nevents_logger = "file"\n'
    )


def make_root_tar() -> bytes:
    """A root file system of empty folders, with the links of a merged /usr."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "proc", "sys", "dev", "etc", "root", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return buffer.getvalue()


def machine_mounts(*folders: Path | str) -> tuple[Mount, ...]:
    """The machine's programs, the interpreter's own folder and ``folders``, each where it is, read-only."""
    paths = ["/usr", sys.base_prefix, *(str(folder) for folder in folders)]
    outside = [path for path in dict.fromkeys(paths) if path == "/usr" or not path.startswith("/usr/")]
    return tuple(Mount(source=path, target=path, is_read_only=True) for path in outside)


def fake_container(name: str, *knobs: str, **changes: object) -> ContainerSpec:
    """A container that runs the fake engine with these knobs."""
    values: dict[str, object] = {
        "name": name,
        "image": IMAGE,
        "args": (
            *("-S", str(FAKES / "fake_engine.py"), "--host", "0.0.0.0"),
            *("--port", str(CONTAINER_PORT), *knobs),
        ),
        "mounts": machine_mounts(FAKES),
        "ports": (PublishedPort(container_port=CONTAINER_PORT, host_port=0),),
    }
    return ContainerSpec(**{**values, **changes})
