"""Makes the programs and stand-ins of tests/fakes importable by their own names."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "fakes"))

# No deadline per example: on a busy machine it would fail tests of which nothing is wrong. pytest's own
# timeout bounds the whole test.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")
