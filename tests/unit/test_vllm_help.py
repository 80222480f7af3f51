"""A plan's command against what the installed vLLM says it understands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vllm_plans import PLANS, SEED_35B, settings_of

from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_flags import find_flag, flag_names
from trimtab.engines.vllm_help import decode_help, find_unknown_options

DATA = Path(__file__).parents[1] / "contract" / "data"


def installed(version):
    return decode_help((DATA / f"vllm-help-{version}.txt").read_text())


@pytest.mark.parametrize("version", ["0.17.1", "0.25.1", "0.32.0"])
def test_every_option_of_the_version_is_found_in_its_help(version):
    """No flag is called unknown that the installed engine takes."""
    found = installed(version).spellings
    for name in flag_names(version):
        flag = find_flag(version, name)
        assert set(flag.options) <= found, name
        assert flag.negative_option is None or flag.negative_option in found


def test_a_planned_command_is_understood_by_its_version():
    """What is planned for 0.17 starts on 0.17."""
    assert find_unknown_options(Vllm().render_argv(SEED_35B), installed("0.17.1")) == ()
    for plan in PLANS.values():
        for model in plan.models:
            argv = Vllm().render_argv(replace(model, engine_version="0.25.1"))
            assert find_unknown_options(argv, installed("0.25.1")) == ()


def test_a_flag_of_another_version_is_named_before_the_start():
    """An engine that is not the planned one is noticed in an instant, not after a failed start."""
    values = {"watermark": 0.01, "max_model_len": -1, "tokenizer": "--x"}
    newer = replace(SEED_35B, engine_version="0.25.1", settings=settings_of(values))
    argv = Vllm().render_argv(newer)

    assert find_unknown_options(argv, installed("0.25.1")) == ()
    assert find_unknown_options(argv, installed("0.17.1")) == ("--watermark",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(
            "usage: vllm [-h] {serve,bench} ...\n\n  -h, --help  show\n  -v, --version  show\n", id="other"
        ),
        pytest.param("Traceback (most recent call last):\n  File x\nImportError: y\n", id="traceback"),
        pytest.param("  --host HOST\n  --tensor-parallel-size N, -tp N\n", id="cut"),
    ],
)
def test_what_is_no_help_judges_nothing(text):
    """A broken installation is not taken for one that knows no flags."""
    assert decode_help(text) is None
