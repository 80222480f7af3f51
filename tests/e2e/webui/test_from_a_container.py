"""Open WebUI in a network of its own, as its Docker image has one, and trimtab on the host."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import open_webui
import pytest
from thinking_engine import ANSWER

pytestmark = [pytest.mark.webui, pytest.mark.timeout(1200)]

ELSEWHERE = Path(__file__).parents[2] / "fakes" / "webui_elsewhere.py"
APART = ("unshare", "--net", "--mount")


@pytest.fixture
def apart():
    """Skips where no network of its own can be made."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "unshare", "nsenter")):
        pytest.skip("a network of its own takes root, ip, unshare and nsenter")
    cable = "ip link add name near type veth peer name far"
    tried = subprocess.run([*APART, *cable.split()], check=False, capture_output=True, text=True, timeout=30)
    if tried.returncode != 0:
        pytest.skip(f"no network of its own can be made here: {tried.stderr.strip()}")


def test_it_reaches_a_gateway_on_the_host(apart, tmp_path):
    """The documented way: --host 0.0.0.0, the key that trimtab makes then, and host.docker.internal."""
    folder, reason = open_webui.install()
    if folder is None:
        pytest.skip(f"no Open WebUI here: {reason}")
    done = subprocess.run(
        [*APART, sys.executable, str(ELSEWHERE), "host", str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "listed": ["thinker", "thinker:thinking", "thinker:instant"],
        "answer": ANSWER,
    }
