"""The command line of each vLLM version: names, spellings, neighbours and what replaced what."""

from __future__ import annotations

import pytest

from trimtab.engines.vllm_arguments import check_vllm_setting
from trimtab.engines.vllm_flag_notes import ENV_NOTES, FLAG_NOTES
from trimtab.engines.vllm_flags import (
    FLAG_VERSIONS,
    choose_flag_version,
    explain_absence,
    explain_env,
    find_flag,
    find_option,
    flag_names,
    has_env,
    has_parser,
    knows_architecture,
    nearest_flags,
    versions_with_flag,
)
from trimtab.errors import StackFileError


def test_one_table_per_minor_version():
    """Every release line that a user can pin has arguments of its own, not a neighbour's."""
    assert len({choose_flag_version(version) for version in FLAG_VERSIONS}) == len(FLAG_VERSIONS)
    assert FLAG_VERSIONS[0] == "0.17.1"
    assert FLAG_VERSIONS[-1] == "0.33.0"


@pytest.mark.parametrize(
    ("version", "table"),
    [
        pytest.param("0.17.0", "0.17.1", id="patch-before"),
        pytest.param("v0.17.0", "0.17.1", id="image-tag"),
        pytest.param("0.25.1+cu129", "0.25.1", id="local-build"),
        pytest.param("0.25.0rc1", "0.25.1", id="candidate"),
        pytest.param("0.21.0", "0.20.2", id="not-read"),
        pytest.param("0.11.2", "0.17.1", id="too-old"),
        pytest.param("1.0.0", "0.33.0", id="too-new"),
    ],
)
def test_a_version_uses_the_table_of_its_minor_or_the_older_neighbour(version, table):
    """A patch release plans like its line; a line nobody read gets no argument from its future."""
    assert choose_flag_version(version) == table


@pytest.mark.parametrize("version", ["latest", "", "0", "main"])
def test_what_is_no_version_is_refused(version):
    """A tag like latest pins nothing; the message shows how a version is written."""
    with pytest.raises(StackFileError, match="isn't a vLLM version") as error:
        choose_flag_version(version)
    assert error.value.hint == "write it like 0.25.1"


@pytest.mark.parametrize("version", FLAG_VERSIONS)
@pytest.mark.parametrize(
    ("name", "option", "kind"),
    [
        ("tensor_parallel_size", "--tensor-parallel-size", "integer"),
        ("max_model_len", "--max-model-len", "size"),
        ("gpu_memory_utilization", "--gpu-memory-utilization", "number"),
        ("enable_prefix_caching", "--enable-prefix-caching", "switch"),
        ("language_model_only", "--language-model-only", "switch"),
        ("default_chat_template_kwargs", "--default-chat-template-kwargs", "json"),
        ("speculative_config", "--speculative-config", "json"),
        ("compilation_config", "--compilation-config", "json"),
        ("served_model_name", "--served-model-name", "list"),
        ("disable_log_stats", "--disable-log-stats", "switch_on"),
        ("hf_token", "--hf-token", "switch_or_text"),
    ],
)
def test_kinds_are_those_of_the_parser(version, name, option, kind):
    """A value is written the way that version's parser reads it."""
    flag = find_flag(version, name)
    assert flag is not None
    assert (flag.option, flag.kind) == (option, kind)


def test_only_switches_with_a_no_form_have_one():
    """``--no-disable-log-stats`` would end the start; ``--no-enable-prefix-caching`` is right."""
    assert find_flag("0.25.1", "enable_prefix_caching").negative_option == "--no-enable-prefix-caching"
    assert find_flag("0.25.1", "disable_log_stats").negative_option is None
    assert not find_flag("0.25.1", "disable_log_stats").takes_value
    assert find_flag("0.25.1", "dtype").takes_value


def test_choices_follow_the_version():
    """A KV type or mode that this version does not know is not offered."""
    assert "nvfp4" not in find_flag("0.17.1", "kv_cache_dtype").choices
    assert "nvfp4" in find_flag("0.32.0", "kv_cache_dtype").choices
    assert find_flag("0.25.1", "mamba_cache_mode").choices == ("align", "all", "none")
    assert find_flag("0.33.0", "mamba_cache_mode").choices == ("align", "none")
    assert "passthrough" not in find_flag("0.33.0", "all2all_backend").choices


@pytest.mark.parametrize(
    ("version", "word", "name", "is_negated", "key", "is_abbreviated"),
    [
        pytest.param("0.25.1", "--max-model-len", "max_model_len", False, "", False, id="plain"),
        pytest.param("0.25.1", "--max_model_len", "max_model_len", False, "", False, id="underscores"),
        pytest.param("0.25.1", "-tp", "tensor_parallel_size", False, "", False, id="short"),
        pytest.param(
            "0.25.1", "--no-enable-prefix-caching", "enable_prefix_caching", True, "", False, id="negated"
        ),
        pytest.param("0.25.1", "--kv-cache-memory", "kv_cache_memory_bytes", False, "", True, id="prefix"),
        pytest.param(
            "0.25.1", "--compilation-config.cudagraph_mode", "compilation_config", False, "cudagraph_mode",
            False, id="key",
        ),
        pytest.param("0.25.1", "-cc.mode", "compilation_config", False, "mode", False, id="short-key"),
        pytest.param(
            "0.32.0", "--device-memory-utilization", "gpu_memory_utilization", False, "", False, id="alias"
        ),
    ],
)  # fmt: skip
def test_a_pasted_option_is_understood_as_the_parser_would(
    version, word, name, is_negated, key, is_abbreviated
):
    """A command that vLLM takes is read the same way here."""
    match = find_option(version, word)
    assert match is not None
    assert (match.flag.name, match.is_negated, match.key, match.is_abbreviated) == (
        name,
        is_negated,
        key,
        is_abbreviated,
    )


@pytest.mark.parametrize(
    "word", ["--max", "--tensor-paralel-size", "--no-max-model-len", "--swap-space", "-x", "--"]
)
def test_an_option_the_parser_would_refuse_is_not_guessed(word):
    """An ambiguous or misspelt option isn't taken for one that was not meant."""
    assert find_option("0.25.1", word) is None


@pytest.mark.parametrize(
    ("version", "name", "says"),
    [
        pytest.param("0.17.1", "watermark", "no watermark yet (0.24.0 has it)", id="not-yet"),
        pytest.param("0.25.1", "swap_space", "0.17.1 was the last", id="gone"),
        pytest.param("0.25.1", "swap_space", "drop it", id="gone-note"),
        pytest.param("0.25.1", "disable_log_requests", "enable_log_requests", id="renamed"),
        pytest.param("0.25.1", "enable_reasoning", "reasoning_parser alone", id="reasoning"),
        pytest.param("0.25.1", "task", "runner", id="task"),
        pytest.param("0.25.1", "num_scheduler_steps", "V0", id="v0"),
        pytest.param("0.33.0", "hash_block_size", "prefix_match_unit", id="config-field"),
        pytest.param("0.25.1", "tensor_paralel_size", "did you mean tensor_parallel_size", id="typo"),
        pytest.param("0.25.1", "xyzzy", "vLLM 0.25.1 has no xyzzy", id="nonsense"),
    ],
)
def test_a_missing_argument_is_explained(version, name, says):
    """Who pastes an old or future flag reads what to write instead."""
    with pytest.raises(StackFileError) as caught:
        check_vllm_setting(version, name, "x", model="m")
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_an_argument_that_exists_needs_no_explanation():
    """No warning is shown for what is right."""
    assert explain_absence("0.25.1", "max_model_len") is None
    assert explain_env("0.25.1", "VLLM_NO_USAGE_STATS") is None
    assert explain_env("0.25.1", "NCCL_P2P_DISABLE") is None


@pytest.mark.parametrize(
    ("version", "name", "says"),
    [
        pytest.param("0.17.0", "VLLM_USE_V1", "only engine", id="v1"),
        pytest.param("0.25.1", "VLLM_ATTENTION_BACKEND", "attention_backend", id="attention"),
        pytest.param("0.33.0", "VLLM_TEST_FORCE_FP8_MARLIN", "0.17.1 to 0.28.0 did", id="marlin"),
        pytest.param("0.33.0", "VLLM_TEST_FORCE_FP8_MARLIN", "linear_backend=marlin", id="marlin-now"),
        pytest.param("0.25.1", "VLLM_NO_SUCH_THING", "does not read", id="unknown"),
    ],
)
def test_a_variable_that_does_nothing_is_explained(version, name, says):
    """A variable from an old guide is named as dead weight instead of being believed."""
    assert says in (explain_env(version, name) or "")


def test_notes_are_about_what_some_version_lacks():
    """No note speaks of an argument that every version has, or one nobody ever could write."""
    assert [name for name in FLAG_NOTES if versions_with_flag(name) == FLAG_VERSIONS] == []
    assert [name for name in ENV_NOTES if all(has_env(version, name) for version in FLAG_VERSIONS)] == []


def test_notes_point_to_arguments_that_exist():
    """The replacement that a note names is there in the newest version, or the note says to drop it."""
    for note in [*FLAG_NOTES.values(), *ENV_NOTES.values()]:
        if "drop it" in note:
            continue
        words = note.replace("=", " ").replace(",", " ").split()
        assert any(find_flag("0.33.0", word) for word in words), note


def test_nearest_names_are_offered_best_first():
    """A misspelt name is met with the one that was meant."""
    assert nearest_flags("0.25.1", "--max-modellen", count=2)[0] == "max_model_len"
    assert nearest_flags("0.25.1", "qqqq") == ()


def test_parsers_and_architectures_follow_the_version():
    """A model that is newer than the engine is seen before the start."""
    assert has_parser("0.17.1", "reasoning", "qwen3")
    assert has_parser("0.17.1", "tool", "qwen3_coder")
    assert not has_parser("0.17.1", "tool", "deepseek_v4")
    assert has_parser("0.25.1", "tool", "deepseek_v4")
    assert knows_architecture("0.17.0", "Qwen3_5MoeForConditionalGeneration")
    assert not knows_architecture("0.17.0", "Gemma4ForConditionalGeneration")
    assert not knows_architecture("0.33.0", "NoSuchForCausalLM")


def test_names_are_sorted_and_complete():
    """Lists of names can be shown as they are."""
    names = flag_names("0.25.1")
    assert list(names) == sorted(names)
    assert {"model", "host", "port", "tensor_parallel_size"} <= set(names)


@pytest.mark.parametrize(
    ("name", "value", "says", "hint"),
    [
        pytest.param("enable_reasoning", True, "has no enable_reasoning any more", "drop it", id="gone"),
        pytest.param("swap_space", 4, "was the last that was read with it", "drop it", id="gone-and-read"),
        pytest.param(
            "enable_prefix_cache",
            True,
            "has no enable_prefix_cache",
            "did you mean enable_prefix_caching",
            id="misspelt",
        ),
        pytest.param("reasoning_parser", "qwn3", "no reasoning parser 'qwn3'", "qwen3?", id="parser"),
    ],
)
def test_a_refused_setting_has_one_way_out(name, value, says, hint):
    """What to write instead and a look-alike never stand side by side."""
    with pytest.raises(StackFileError) as caught:
        check_vllm_setting("0.25.1", name, value, model="m")

    assert says in caught.value.message
    assert hint in caught.value.hint
    assert "did you mean" not in caught.value.message
    assert not ("drop it" in caught.value.hint and "did you mean" in caught.value.hint)
