"""Makes the programs and stand-ins of tests/fakes importable by their own names."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

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
