"""Pure. What vLLM's own parser made of command lines, recorded once, is what is read from them."""

import json
import shlex
from pathlib import Path

import pytest

from trimtab.engines.vllm_flags import flag_names
from trimtab.stackfile.foreign import decode_foreign

RECORD = json.loads((Path(__file__).parents[1] / "foreign" / "vllm-parser.json").read_text())
ROWS = RECORD["rows"]
# Sizes for people, which the planner reads later by the same rules.
SIZES = {"8G": 8 * 2**30, "32k": 32_000}


def is_same(value, recorded):
    """Whether a pinned value is what the parser had; some flags lower their word."""
    if isinstance(recorded, dict | list):
        return json.loads(value) == recorded
    if isinstance(recorded, str):
        return str(value).lower() == recorded.lower()
    return SIZES.get(value, value) == recorded


@pytest.mark.parametrize("row", ROWS, ids=[f"{place}-{row['words'][1]}" for place, row in enumerate(ROWS)])
def test_a_line_means_what_vllm_s_parser_says(row):
    """Spellings, short forms, lists, JSON and dotted JSON arrive as vLLM takes them."""
    line = f"docker run --gpus all vllm/vllm-openai:v{RECORD['version']} {shlex.join(row['words'])}"

    (model,) = decode_foreign(line, source="line").models

    assert model.request.checkpoint == row["model"]
    pins = dict(model.request.engine_args)
    assert [name for name, recorded in row["parsed"].items() if not is_same(pins[name], recorded)] == []


def test_the_record_covers_most_of_the_arguments():
    """A record of a few flags would prove little."""
    covered = {name for row in ROWS for name in row["parsed"]}

    assert len(covered & set(flag_names(RECORD["version"]))) > 200
