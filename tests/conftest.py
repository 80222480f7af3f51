"""Makes the programs and stand-ins of tests/fakes importable by their own names; settings for all tests."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent / "fakes"))

# Several hundred tests start a Python; where nothing compiled may be kept, a start takes half as long again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline per example and no complaint about slow drawing: on a busy machine they would fail tests of
# which nothing is wrong. pytest's own timeout bounds the whole test.
settings.register_profile("trimtab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI judges a change: the same examples each time. Everybody else draws new ones at every run.
settings.register_profile("ci", settings.get_profile("trimtab"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "trimtab")

# Files whose tests share what is slow to make: one worker runs them, in order.
TOGETHER = {
    "tests/e2e/engines/test_main_job.py": "a running stack",
    "tests/e2e/engines/test_protocols_llama_cpp.py": "two running models",
}


def group_of(nodeid):
    """Tests of one group run on one worker; most are a group by themselves."""
    return TOGETHER.get(nodeid.partition("::")[0], nodeid)


class GroupScheduling(LoadScopeScheduling):
    """One scope for every group."""

    def _split_scope(self, nodeid):
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadgroup`` by the table above: marks on tests do not reach pytest-xdist 3.8 from pytest 9."""
    if config.getoption("dist") != "loadgroup":
        return None
    return GroupScheduling(config, log)


def pytest_configure():
    """Where there is a core for every worker, each has its own, and engines that it starts count one core.

    Two llama.cpp with a thread for each of two cores spin while they wait for one another: a start of a
    second takes most of a minute.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    cores = sorted(os.sched_getaffinity(0))
    if worker is not None and int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) <= len(cores):
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw"))]})
