"""Pure. The page about checking an existing launch lists every finding and shows a true example."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_check import check_foreign

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "check-what-i-have.md").read_text()
SOURCES = [path.read_text() for path in sorted((ROOT / "src" / "trimtab" / "stackfile").glob("foreign*.py"))]
SEVERITIES = {"error", "harmful", "obsolete", "unknown", "note"}
LISTED = {
    code
    for row in PAGE.split("## Findings")[1].split("Memory and legality")[0].splitlines()
    if row.startswith("| `")
    for code in re.findall(r"`([a-z0-9_]+)`", row.split(" | ")[0])
}


def codes_in(text):
    """Codes as they are given to a finding: right before its severity, or by name."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        values = [argument.value if isinstance(argument, ast.Constant) else None for argument in node.args]
        for code, severity in pairwise(values):
            if severity in SEVERITIES:
                yield code
        yield from (
            keyword.value.value
            for keyword in node.keywords
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
        )


def test_every_finding_is_on_the_page():
    """Whoever meets a code finds it explained."""
    codes = {code for text in SOURCES for code in codes_in(text)}

    assert len(codes) > 40
    assert codes - LISTED == set()


def test_the_page_lists_nothing_that_is_not_there():
    """A code that went is off the page."""
    assert [code for code in sorted(LISTED) if not any(f'"{code}"' in text for text in SOURCES)] == []


def test_the_example_is_judged_as_the_page_says():
    """What the page shows can be tried."""
    script = PAGE.split("```bash\n")[1].split("```")[0]
    stack = decode_foreign(script, source="page")

    found = check_foreign(stack, has_p2p=False)

    assert stack.findings == ()
    assert {(finding.code, finding.where) for finding in found} == {
        ("p2p_forced_on", "line 2"),
        ("obsolete_env", "line 2"),
        ("open_endpoint", "line 1"),
        ("no_reasoning_parser", "line 1"),
    }
