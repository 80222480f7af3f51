"""Makes the programs and stand-ins of tests/fakes importable by their own names."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "fakes"))

# No deadline per example and no complaint about slow drawing: on a busy machine they would fail tests of
# which nothing is wrong. pytest's own timeout bounds the whole test.
settings.register_profile("trimtab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trimtab")
