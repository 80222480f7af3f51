"""The page about doctor lists every finding there is, and none that there isn't."""

import re
from pathlib import Path

from trimtab.probes import gpu_nvml

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trimtab"
LISTED = {
    code
    for row in (ROOT / "docs" / "doctor.md").read_text().splitlines()
    if row.startswith("| `")
    for code in re.findall(r"`([a-z0-9-]+)`", row.split(" | ")[0])
}


def codes_in(pattern):
    found = (re.findall(r'code="([a-z0-9-]+)"', path.read_text()) for path in SOURCE.glob(pattern))
    return {code for codes in found for code in codes}


def all_codes():
    """Findings, and the probe's problems as findings call them."""
    problems = codes_in("probes/gpu*.py") | {code for code, _, _ in gpu_nvml._PROBLEMS.values()}
    problems |= set(re.findall(r'"(driver-error)"', (SOURCE / "probes" / "gpu_nvml.py").read_text()))
    as_findings = {f"gpu-{code.removeprefix('gpu-')}" for code in problems}
    folders = {"state", "cache"}  # one check for both, by name
    return codes_in("planner/preflight*.py") | as_findings | folders


def test_every_finding_is_on_the_page():
    """Whoever meets a code finds out what was looked at."""
    assert len(all_codes()) > 35
    assert all_codes() - LISTED == set()


def test_the_page_lists_nothing_that_is_not_there():
    """A code that went is off the page."""
    assert LISTED - all_codes() == set()
