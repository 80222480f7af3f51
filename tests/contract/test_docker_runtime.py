"""What only a real daemon can show: names, ports, images, mounts, foreign containers, lost supervisors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from docker import APIClient
from docker_daemons import serve
from podman_service import CONTAINER_PORT, IMAGE, fake_container, machine_mounts, podman_version
from supervising_program import fake_spec

from trimtab.core.container import Mount, PublishedPort
from trimtab.core.state import ExitStatus
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.runtimes import docker_start
from trimtab.runtimes.docker import DockerRuntime
from trimtab.runtimes.docker_labels import STATE_LABEL

pytestmark = [pytest.mark.engine, pytest.mark.alone, pytest.mark.timeout(120)]


@pytest.fixture
async def runtime(tmp_path, daemon, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", daemon.address)
    chosen = DockerRuntime(tmp_path)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=0)
    chosen.close()


@pytest.fixture
def api(daemon):
    client = APIClient(base_url=daemon.address, version="auto")
    yield client
    for entry in client.containers(all=True):
        client.remove_container(entry["Id"], force=True)
    client.close()


def spec(*knobs, replica_id="fake-0", detached=True, **changes):
    container = fake_container(f"trimtab-tests-{replica_id}", *knobs, **changes)
    return replace(fake_spec(replica_id=replica_id, detached=detached), container=container)


async def log_holds(runtime, word, replica_id="fake-0"):
    deadline = time.monotonic() + 10
    while not any(word in line for line in runtime.read_log_tail(replica_id, max_lines=50)):
        assert time.monotonic() < deadline, runtime.read_log_tail(replica_id, max_lines=50)
        await asyncio.sleep(0.05)


async def test_the_container_is_what_was_asked_for(runtime, api, tmp_path, monkeypatch):
    """Nothing is quietly lost on the way to the daemon: labels, variables, mounts, memory, port."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("content")
    monkeypatch.setenv("TRIMTAB_TESTS_TOKEN", "secret")
    mounts = (
        *fake_container("x").mounts,
        Mount(source=str(data), target="/data", is_read_only=True),
        Mount(source=str(tmp_path / "made" / "cache"), target="/cache"),
    )
    wanted = spec(
        mounts=mounts,
        env=(("A", "1"), ("B", "two words")),
        passed_env=("TRIMTAB_TESTS_TOKEN", "TRIMTAB_TESTS_ABSENT"),
        shm_bytes=123 * 1024 * 1024,
        labels=(("owner", "tests"),),
    )
    observed = await runtime.start_replica(wanted)

    found = api.inspect_container("trimtab-tests-fake-0")
    assert {"A=1", "B=two words", "TRIMTAB_TESTS_TOKEN=secret"} <= set(found["Config"]["Env"])
    assert not any("ABSENT" in item for item in found["Config"]["Env"])
    assert found["Config"]["Labels"]["owner"] == "tests"
    assert found["Config"]["Labels"]["trimtab.replica"] == "fake-0"
    assert found["Config"]["Labels"]["trimtab.config-hash"] == wanted.config_hash
    assert found["HostConfig"]["ShmSize"] == 123 * 1024 * 1024
    assert {item["Destination"]: item["RW"] for item in found["Mounts"]}["/data"] is False
    assert (tmp_path / "made" / "cache").is_dir()
    binding = found["HostConfig"]["PortBindings"][f"{CONTAINER_PORT}/tcp"][0]
    assert binding == {"HostIp": "127.0.0.1", "HostPort": str(observed.port)}


async def test_the_hosts_shared_memory_is_used_when_asked(runtime, api):
    """NCCL between containers needs the host's own segment; podman's refusal of a size is avoided."""
    script = "import os,sys; print(sorted(os.listdir('/dev/shm'))); sys.stdout.flush(); input()"
    marker = Path(f"/dev/shm/trimtab-tests-{os.getpid()}")
    marker.touch()
    try:
        await runtime.start_replica(spec(args=("-S", "-c", script), ports=(), ipc="host", shm_bytes=1 << 30))
        await log_holds(runtime, marker.name)
    finally:
        marker.unlink()


async def test_a_foreign_container_of_that_name_is_left_alone(runtime, api):
    """Somebody else's container is neither replaced nor stopped, and the message says what to do."""
    body = {"Image": IMAGE, "Cmd": ["-S", "-c", "input()"], "OpenStdin": True}
    body["HostConfig"] = {
        "Mounts": [
            {"Type": "bind", "Source": item.source, "Target": item.target, "ReadOnly": True}
            for item in machine_mounts()
        ]
    }
    foreign = api.create_container_from_config(body, name="trimtab-tests-fake-0")["Id"]
    api.start(foreign)

    with pytest.raises(EnvironmentMissingError, match="named trimtab-tests-fake-0 already, that trimtab"):
        await runtime.start_replica(spec())
    assert await runtime.list_replicas() == ()
    await runtime.stop_replica("fake-0", grace_s=0)
    assert api.inspect_container(foreign)["State"]["Running"]


async def test_two_state_folders_do_not_see_each_other(runtime, tmp_path, api):
    """Two users of one daemon stop only their own."""
    await runtime.start_replica(spec())
    other = DockerRuntime(tmp_path / "other")
    assert await other.list_replicas() == ()
    await other.stop_replica("fake-0", grace_s=0)
    with pytest.raises(EnvironmentMissingError, match="of another state folder"):
        await other.start_replica(spec())
    (listed,) = await runtime.list_replicas()
    assert listed.is_running
    other.close()


async def test_a_missing_image_is_one_sentence_and_leaves_nothing(runtime, api):
    """An image that was never fetched is refused with the command that fetches it."""
    with pytest.raises(
        EnvironmentMissingError, match="image localhost/no/such:1 is not on this machine"
    ) as info:
        await runtime.start_replica(spec(image="localhost/no/such:1"))
    assert info.value.hint == "fetch it once: docker pull localhost/no/such:1"
    assert api.containers(all=True) == []


async def test_a_refused_pull_says_why(daemon, tmp_path, monkeypatch, api):
    """When fetching is allowed and fails, the registry's word is passed on, once."""
    monkeypatch.setenv("DOCKER_HOST", daemon.address)
    runtime = DockerRuntime(tmp_path, on_pull=lambda _: None)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        image = f"127.0.0.1:{closed.getsockname()[1]}/no/such:1"
    with pytest.raises(EnvironmentMissingError, match=f"cannot fetch image {image}"):
        await runtime.start_replica(spec(image=image))
    assert api.containers(all=True) == []
    runtime.close()


async def test_a_registry_that_hangs_does_not_hold_up_a_cancelled_start(daemon, tmp_path, monkeypatch, api):
    """Ctrl-C ends a start at once, although the image's registry never answers."""
    monkeypatch.setenv("DOCKER_HOST", daemon.address)
    runtime = DockerRuntime(tmp_path, on_pull=lambda _: None)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        image = f"127.0.0.1:{silent.getsockname()[1]}/no/such:1"
        start = asyncio.ensure_future(runtime.start_replica(spec(image=image)))
        silent.settimeout(20)
        client = (await asyncio.to_thread(silent.accept))[0]
        start.cancel()
        began_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert time.monotonic() - began_s < 3
        client.close()
    assert api.containers(all=True) == []
    runtime.close()


async def test_a_program_that_the_image_lacks_is_told(runtime, api):
    """A wrong entry point fails at once, with the image's name."""
    with pytest.raises(EngineStartError, match=f"image {IMAGE} cannot run its program"):
        await runtime.start_replica(spec(mounts=machine_mounts()[:0]))
    assert api.containers(all=True) == []


async def test_a_folder_that_does_not_exist_is_told_before_anything_starts(runtime, api, tmp_path):
    """A model folder with a typing error is named, and Docker does not make an empty one of that name."""
    mounts = (*machine_mounts(), Mount(source=str(tmp_path / "modle"), target="/model", is_read_only=True))
    with pytest.raises(
        EnvironmentMissingError, match="modle, which its container is to read, does not exist"
    ):
        await runtime.start_replica(spec(mounts=mounts))
    assert not (tmp_path / "modle").exists()
    assert api.containers(all=True) == []


async def test_a_pinned_port_that_is_taken_is_told_and_leaves_nothing(runtime, api):
    """A port the user named is never swapped for another one."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        wanted = spec(ports=(PublishedPort(container_port=CONTAINER_PORT, host_port=port),))
        with pytest.raises(EnvironmentMissingError, match=r"address already in use|already allocated"):
            await runtime.start_replica(wanted)
    assert api.containers(all=True) == []


async def test_a_port_lost_in_the_race_is_picked_again(runtime, monkeypatch):
    """Somebody who takes the picked port in the last moment delays a start, no more."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        picks = iter([taken, taken])
        real = docker_start._pick_port
        monkeypatch.setattr(docker_start, "_pick_port", lambda *args: next(picks, None) or real(*args))
        observed = await runtime.start_replica(spec())
    assert observed.port != taken
    await log_holds(runtime, "listening")


async def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(runtime, api):
    """A stuck container cannot hold up a stop for longer than the grace."""
    await runtime.start_replica(spec("--ignore-sigterm"))
    await log_holds(runtime, "listening")
    began_s = time.monotonic()
    await runtime.stop_replica("fake-0", grace_s=0.5)
    assert time.monotonic() - began_s < 5
    assert api.containers(all=True) == []


async def test_a_cancelled_start_leaves_no_container(runtime, api):
    """Ctrl-C at any moment of a start leaves nothing half-started."""
    for delay_s in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2):
        start = asyncio.ensure_future(runtime.start_replica(spec()))
        await asyncio.sleep(delay_s)
        start.cancel()
        try:
            await start
        except asyncio.CancelledError:
            assert api.containers(all=True) == [], delay_s
        else:
            await runtime.stop_replica("fake-0", grace_s=0)


async def test_the_log_of_an_adopted_container_goes_on(runtime, tmp_path):
    """`trimtab logs` shows what a container says under its second supervisor too."""
    script = "import time\nfor n in range(600): print('line', n, flush=True); time.sleep(0.1)"
    observed = await runtime.start_replica(spec(args=("-S", "-c", script), ports=()))
    log = Path(observed.log_path)
    await log_holds(runtime, "line 1")
    other = DockerRuntime(tmp_path)
    waiting = asyncio.ensure_future(other.wait_exit("fake-0"))
    deadline = time.monotonic() + 10
    while "line 15" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await other.stop_replica("fake-0", grace_s=0)
    await asyncio.wait_for(waiting, 5)
    other.close()


async def test_a_stop_by_another_command_doubles_no_line_of_the_log(runtime, tmp_path):
    """While `up` copies a container's output, `down` in another terminal does not copy it again."""
    script = (
        "import signal, sys, time\n"
        "def leave(*_): print('last word', flush=True); time.sleep(1); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('first word', flush=True)\n"
        "time.sleep(60)\n"
    )
    observed = await runtime.start_replica(spec(args=("-S", "-c", script), ports=()))
    await log_holds(runtime, "first word")
    other = DockerRuntime(tmp_path)
    await other.stop_replica("fake-0", grace_s=10)
    other.close()
    lines = Path(observed.log_path).read_text().splitlines()
    assert lines == ["first word", "last word"]


async def test_a_restarted_daemon_is_watched_again(tmp_path, tmp_path_factory, monkeypatch):
    """A daemon that is updated under a running engine costs neither the engine nor its end."""
    with serve("podman", tmp_path_factory.mktemp("podman")) as podman:
        monkeypatch.setenv("DOCKER_HOST", podman.address)
        runtime = DockerRuntime(tmp_path)
        observed = await runtime.start_replica(spec())
        await log_holds(runtime, "listening")
        waiting = asyncio.ensure_future(runtime.wait_exit("fake-0"))
        await asyncio.sleep(0.2)
        podman.restart()
        os.kill(observed.pid, signal.SIGUSR1)
        assert await asyncio.wait_for(waiting, 20) == ExitStatus(code=3)
        await runtime.stop_replica("fake-0", grace_s=0)
        runtime.close()


async def test_a_foreground_container_ends_with_a_killed_supervisor(runtime, tmp_path, api):
    """Kill -9 of `trimtab up` does not leave a container that holds the card."""
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from test_docker_runtime import spec\n"
        "from trimtab.runtimes.docker import DockerRuntime\n"
        "async def main():\n"
        "    await DockerRuntime(Path(sys.argv[1])).start_replica(spec(detached=False))\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdout.readline() == b"started\n"
        (listed,) = await runtime.list_replicas()
        assert listed.is_running
        assert listed.dies_with_supervisor
        await log_holds(runtime, "listening")
        supervisor.send_signal(signal.SIGKILL)
    status = await asyncio.wait_for(runtime.wait_exit("fake-0"), 20)
    assert status == ExitStatus(code=0)


async def test_only_labelled_containers_are_listed(runtime, api):
    """A container that merely looks like ours is not ours."""
    body = {"Image": IMAGE, "Cmd": ["-c", ""], "Labels": {"trimtab.replica": "fake-0"}}
    foreign = api.create_container_from_config(body, name="looks-like-ours")["Id"]
    assert await runtime.list_replicas() == ()
    await runtime.stop_replica("fake-0", grace_s=0)
    assert api.inspect_container(foreign)["Config"]["Labels"].get(STATE_LABEL) is None


async def test_a_daemon_that_cannot_give_the_cards_is_told(runtime, api, daemon):
    """An engine is never started without the cards it was planned for."""
    if daemon.name == "podman" and podman_version() >= (5, 4):
        pytest.skip("this podman honours requests for GPUs")
    says = {"podman": "drops requests for GPUs", "docker": "could not select device driver"}
    with pytest.raises(EnvironmentMissingError, match=says[daemon.name]):
        await runtime.start_replica(spec(gpu_ids=("0",)))
    assert api.containers(all=True) == []


async def test_no_socket_is_one_sentence_with_its_fix(tmp_path, monkeypatch):
    """A machine without Docker learns what to start."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(EnvironmentMissingError, match=r"no Docker daemon at .*absent\.sock") as info:
        await DockerRuntime(tmp_path).start_replica(spec())
    assert "systemctl start docker" in info.value.hint


async def test_a_daemon_on_another_machine_is_refused(tmp_path, monkeypatch):
    """The plan is for this machine's cards; a remote DOCKER_HOST is not quietly used."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu-box.invalid:2375")
    with pytest.raises(EnvironmentMissingError, match="a daemon on another machine"):
        await DockerRuntime(tmp_path).list_replicas()
