"""What `plan --emit docker` prints and what the Docker runtime sends are the same container."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from recorded_docker_api import recorded_docker_api
from recorded_shell import run_in_bash
from vllm_plans import PLANS

from trimtab.core.state import ReplicaSpec
from trimtab.engines.vllm_container import container_of
from trimtab.engines.vllm_emit import render_emit
from trimtab.runtimes.docker_body import Dialect, Placement, render_create_body

_WITH_VALUE = ("--name", "-p", "-v", "-e", "--gpus", "--label")


def of_command(args):
    """The parts of a `docker run` call under the names of the API's body."""
    options: dict[str, list[str]] = {name: [] for name in _WITH_VALUE}
    flags: dict[str, str] = {}
    words = list(args[1:])
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word in options:
            options[word].append(words.pop(0))
        else:
            name, _, value = word.partition("=")
            flags[name] = value
    image, *cmd = words
    host_port, _, _ = options["-p"][0].rpartition(":")
    ip, _, port = host_port.rpartition(":")
    return {
        "Image": image,
        "Cmd": cmd,
        # A name alone is handed through; the API is sent a value for it, where there is one.
        "Env": [item for item in options["-e"] if "=" in item],
        "Mounts": [tuple(item.split(":")) for item in options["-v"]],
        "Port": (ip or "0.0.0.0", port),
        "IpcMode": flags["--ipc"],
        "ShmSize": int(flags["--shm-size"].removesuffix("g")) * 2**30,
        "DeviceIDs": options["--gpus"][0].strip('"').removeprefix("device=").split(","),
    }


def of_body(body):
    """The same parts out of what is sent to ``POST /containers/create``."""
    host = body["HostConfig"]
    ((binding,),) = host["PortBindings"].values()
    (request,) = host["DeviceRequests"]
    return {
        "Image": body["Image"],
        "Cmd": body["Cmd"],
        "Env": body["Env"],
        "Mounts": [
            (mount["Source"], mount["Target"], *(["ro"] if mount["ReadOnly"] else []))
            for mount in host["Mounts"]
        ],
        "Port": (binding["HostIp"], binding["HostPort"]),
        "IpcMode": host["IpcMode"],
        "ShmSize": host["ShmSize"],
        "DeviceIDs": request["DeviceIDs"],
    }


def sent_by_the_runtime(plan):
    """What the Docker runtime sends for each replica, with the ports that the text names."""
    replicas = [(model, replica) for model in plan.models for replica in model.replicas]
    bodies = []
    for index, (model, replica) in enumerate(replicas):
        container = container_of(model, replica, gpus=plan.hardware.gpus, host_ip=plan.gateway.host)
        sources = [mount.source.replace("~", "/home/a b", 1) for mount in container.mounts]
        placement = Placement(host_ports=(8000 + index,), mount_sources=tuple(sources))
        spec = ReplicaSpec(
            replica_id=replica.replica_id, stack=plan.stack, model=model.name, engine="vllm", argv=(), env=(),
            config_hash="x", trimtab_version="0",
        )  # fmt: skip
        bodies.append(render_create_body(spec, container, placement, dialect=Dialect.DOCKER, own_labels={}))
    return bodies


@pytest.mark.parametrize("case", PLANS)
def test_the_printed_container_is_the_one_that_is_sent(tmp_path, case):
    """Whoever reviews the text has reviewed what `up` starts: arguments, variables, cards, mounts, port."""
    plan = PLANS[case]
    done, calls = run_in_bash(render_emit(plan, "docker"), tmp_path)

    assert done.returncode == 0, done.stderr
    printed = [of_command(call.args) for call in calls if call.args[0] == "run"]
    assert printed == [of_body(body) for body in sent_by_the_runtime(plan)]


def of_the_cli(body):
    """What Docker's own CLI made of the text, in the runtime's terms: a bind is a mount."""
    host = body["HostConfig"]
    ((binding,),) = host["PortBindings"].values()
    (request,) = host["DeviceRequests"]
    assert request["Capabilities"] == [["gpu"]]
    return {
        "Image": body["Image"],
        "Cmd": body["Cmd"],
        # A name alone is one that is handed through and isn't set here.
        "Env": sorted(item for item in body["Env"] if "=" in item),
        # The CLI keeps them in no order.
        "Mounts": sorted(tuple(bind.split(":")) for bind in host["Binds"]),
        "Port": (binding["HostIp"] or "0.0.0.0", binding["HostPort"]),
        "IpcMode": host["IpcMode"],
        "ShmSize": host["ShmSize"],
        "DeviceIDs": request["DeviceIDs"],
    }


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's command line isn't installed")
@pytest.mark.parametrize("case", PLANS)
def test_dockers_own_command_line_makes_the_same_request_of_it(case):
    """The pasted text asks the daemon for exactly what `up` asks it for."""
    plan = PLANS[case]
    with recorded_docker_api() as (address, created):
        done = subprocess.run(
            ["bash"],
            input=render_emit(plan, "docker"),
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/home/a b",
                "DOCKER_HOST": address,
                "DOCKER_CONFIG": "/x",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert len(created) == sum(len(model.replicas) for model in plan.models), done.stderr
    bodies = sent_by_the_runtime(plan)
    wanted = [
        of_body(body) | {"Env": sorted(body["Env"]), "Mounts": sorted(of_body(body)["Mounts"])}
        for body in bodies
    ]
    assert [of_the_cli(body) for _, body in created] == wanted
