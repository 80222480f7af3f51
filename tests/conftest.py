"""Makes the programs and stand-ins of tests/fakes importable by their own names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "fakes"))
