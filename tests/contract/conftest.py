"""Daemons that speak the Docker API, as far as this machine has them; a missing one says so in the skip."""

import pytest
from docker_daemons import serve


@pytest.fixture(scope="session")
def podman_daemon(tmp_path_factory):
    """Podman's service."""
    with serve("podman", tmp_path_factory.mktemp("podman")) as running:
        yield running


@pytest.fixture(scope="session")
def docker_daemon(tmp_path_factory):
    """Docker's own daemon."""
    with serve("docker", tmp_path_factory.mktemp("docker")) as running:
        yield running


@pytest.fixture(params=["podman", "docker"])
def daemon(request):
    """What runs on one must run on the other."""
    return request.getfixturevalue(f"{request.param}_daemon")
