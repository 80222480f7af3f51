"""Open WebUI as in a container and trimtab as on its host: two networks, neither of them this machine's.

    unshare --net --mount python webui_elsewhere.py host FOLDER

makes of its own network the host's: an engine, a gateway that listens on all addresses, and a second network
joined by one cable, where host.docker.internal is the first. There it runs itself again as

    python webui_elsewhere.py container FOLDER ENDPOINT KEY

which prints one JSON document: the models that are ``listed`` and the ``answer`` of the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import open_webui
from thinking_engine import ThinkingEngine
from trimtab_program import Program, read_ready

# Docker's own, which nothing else has in a network that is new.
HOST, CONTAINER = "172.17.0.1", "172.17.0.2"
# The first line of input says that the cable is there.
BEGIN = 'read ready && ip link set lo up && mount --bind "$0" /etc/hosts && exec "$@"'


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=30)


def start_apart(hosts: Path, *argv: str) -> subprocess.Popen[str]:
    """A program in a network of its own that waits for the cable."""
    return subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", BEGIN, str(hosts), *argv],
        stdin=subprocess.PIPE,
        text=True,
    )


def join(pid: int) -> None:
    """Lay a cable to the network of a process, as soon as it has one."""
    own = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        time.sleep(0.02)
    run("ip", "link", "add", "docker0", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "addr", "add", f"{HOST}/16", "dev", "docker0")
    run("ip", "link", "set", "docker0", "up")
    inside = ("nsenter", "--target", str(pid), "--net", "ip")
    run(*inside, "addr", "add", f"{CONTAINER}/16", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")


def be_host(folder: Path) -> int:
    run("ip", "link", "set", "lo", "up")
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{HOST} host.docker.internal\n")
    engine = ThinkingEngine().start()
    program = Program(folder)
    (folder / "stack.yaml").write_text(f'models: {{thinker: {{url: "{engine.url}", family: qwen3.5}}}}')
    try:
        ready = read_ready(program.serve("gateway", "stack.yaml", "--host", "0.0.0.0"))
        port = ready["endpoint"].removesuffix("/v1").rpartition(":")[2]
        endpoint = f"http://host.docker.internal:{port}/v1"
        container = start_apart(
            hosts, sys.executable, __file__, "container", str(folder), endpoint, ready["key"]
        )
        join(container.pid)
        container.communicate("ready\n", timeout=400)
    finally:
        program.close()
        engine.stop()
    return container.returncode


def be_container(folder: Path, endpoint: str, key: str) -> int:
    environment, reason = open_webui.install()
    assert environment is not None, reason
    webui = open_webui.OpenWebUi(environment, folder / "webui", endpoint, key).start()
    try:
        listed = [entry["id"] for entry in webui.ask("/api/models")["data"]]
        body = {"model": listed[0], "messages": [{"role": "user", "content": "Hi."}]}
        answer = webui.ask("/api/chat/completions", body)["choices"][0]["message"]["content"]
    finally:
        webui.stop()
    print(json.dumps({"listed": listed, "answer": answer}))
    return 0


if __name__ == "__main__":
    part, place, *more = sys.argv[1:]
    sys.exit(be_host(Path(place)) if part == "host" else be_container(Path(place), *more))
