"""Pinned llama.cpp settings: what is legal, and how a wrong one is named."""

from __future__ import annotations

import pytest

from trimtab.engines.llama_cpp_settings import SETTINGS, check_setting
from trimtab.errors import StackFileError


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        pytest.param("n_ctx", 4096, 4096, id="integer"),
        pytest.param("rope_freq_scale", 0.25, 0.25, id="number"),
        pytest.param("rope_freq_scale", 1, 1, id="whole-number-for-number"),
        pytest.param("kv_unified", False, False, id="switch"),
        pytest.param("cache_type_k", "q8_0", "q8_0", id="choice"),
        pytest.param("flash_attn", True, "on", id="yaml-on"),
        pytest.param("flash_attn", False, "off", id="yaml-off"),
        pytest.param("chat_template", "chatml", "chatml", id="text"),
    ],
)
def test_legal_value_is_taken(name: str, value: object, taken: object):
    """A pinned value reaches the engine as written; YAML's on and off are read as meant."""
    assert check_setting(name, value, model="m") == taken


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        pytest.param("n_ctx", "4096", "a whole number from 1", id="text-for-integer"),
        pytest.param("n_ctx", True, "a whole number from 1", id="truth-for-integer"),
        pytest.param("n_ctx", 1.5, "a whole number from 1", id="fraction-for-integer"),
        pytest.param("n_ctx", 0, "a whole number from 1", id="too-small"),
        pytest.param("n_parallel", 257, "a whole number from 1 to 256", id="too-large"),
        pytest.param("rope_freq_scale", float("nan"), "a number from 0 to 1", id="nan"),
        pytest.param("rope_freq_base", "x", "a number of at least 0", id="text-for-number"),
        pytest.param("kv_unified", 1, "true or false", id="number-for-switch"),
        pytest.param("cache_type_k", "q9_0", "one of f32, f16", id="unknown-choice"),
        pytest.param("cache_type_k", True, "one of f32, f16", id="truth-for-choice"),
        pytest.param("chat_template", 5, "a text", id="number-for-text"),
    ],
)
def test_illegal_value_is_named_with_path_and_legal_values(name: str, value: object, legal: str):
    """A wrong value is answered with where it stands and what would be legal."""
    with pytest.raises(StackFileError, match=rf"models\.m\.engine_args\.{name}: .* is not {legal}"):
        check_setting(name, value, model="m")


@pytest.mark.parametrize(
    ("typo", "meant"), [("n_ctxx", "n_ctx"), ("cache_typ_k", "cache_type_k"), ("n_thread", "n_threads")]
)
def test_misspelt_name_is_answered_with_the_nearest(typo: str, meant: str):
    """A typing error in a setting's name costs one look, not a search."""
    with pytest.raises(StackFileError, match=rf"models\.m\.engine_args\.{typo}: ") as caught:
        check_setting(typo, 1, model="m")
    assert f"did you mean {meant}?" in caught.value.hint


def test_names_and_flags_are_unique():
    """No two settings share a flag, so a pin never changes another one."""
    flags = [spec.flag for spec in SETTINGS.values()]
    assert len(set(flags)) == len(flags)
    assert all(name == spec.name for name, spec in SETTINGS.items())
