"""Which parsers a model's output needs, told from its config and its name."""

from __future__ import annotations

import json

import pytest
from wishes import DENSE_FP8, plan, setting, wish

from trimtab.engines.vllm_families import family_settings, find_family, thinking_kwargs
from trimtab.engines.vllm_flags import FLAG_VERSIONS, has_parser
from trimtab.gateway.thinking_families import FAMILIES

_QWEN3 = {"architecture": "Qwen3ForCausalLM", "model_type": "qwen3"}
_QWEN3_MOE = {"architecture": "Qwen3MoeForCausalLM", "model_type": "qwen3_moe"}
_QWEN3_NEXT = {"architecture": "Qwen3NextForCausalLM", "model_type": "qwen3_next"}
_QWEN35 = {"architecture": "Qwen3_5ForConditionalGeneration", "model_type": "qwen3_5"}
_QWEN35_MOE = {"architecture": "Qwen3_5MoeForConditionalGeneration", "model_type": "qwen3_5_moe"}
_DEEPSEEK = {"architecture": "DeepseekV3ForCausalLM", "model_type": "deepseek_v3"}

CASES = [
    pytest.param({**_QWEN3, "checkpoint": "Qwen/Qwen3-32B", "max_position_embeddings": 40960},
                 ("qwen3", "qwen3", "hermes", True), id="qwen3-32b"),
    pytest.param({**_QWEN3, "checkpoint": "/models/mine"}, ("qwen3", "qwen3", "hermes", True), id="folder"),
    pytest.param({**_QWEN3_MOE, "checkpoint": "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8"},
                 ("qwen3-thinking", "qwen3", "hermes", True), id="2507-thinking"),
    pytest.param({**_QWEN3_MOE, "checkpoint": "Qwen/Qwen3-30B-A3B-Instruct-2507"},
                 ("qwen3-instruct", None, "hermes", False), id="2507-instruct"),
    pytest.param({**_QWEN3_MOE, "checkpoint": "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"},
                 ("qwen3-coder", None, "qwen3_coder", False), id="coder"),
    pytest.param({**_QWEN3_NEXT, "checkpoint": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
                 ("qwen3-instruct", None, "hermes", False), id="next-instruct"),
    pytest.param({**_QWEN35_MOE, "checkpoint": "Qwen/Qwen3.5-35B-A3B-FP8", "hidden_size": 2048},
                 ("qwen3.5", "qwen3", "qwen3_coder", True), id="qwen3.5-35b"),
    pytest.param({**_QWEN35, "checkpoint": "cyankiwi/Qwen3.5-27B-AWQ-4bit", "hidden_size": 5120},
                 ("qwen3.5", "qwen3", "qwen3_coder", True), id="qwen3.5-27b"),
    pytest.param({**_QWEN35, "checkpoint": "Qwen/Qwen3.5-2B", "hidden_size": 2048},
                 ("qwen3.5", "qwen3", "qwen3_coder", False), id="qwen3.5-2b-does-not-think"),
    pytest.param({**_QWEN35, "model_type": "qwen3_5_text", "architecture": "Qwen3_5ForCausalLM"},
                 ("qwen3.5", "qwen3", "qwen3_coder", True), id="text-only-class"),
    pytest.param({**_DEEPSEEK, "checkpoint": "deepseek-ai/DeepSeek-R1-0528"},
                 ("deepseek-r1", "deepseek_r1", "deepseek_v3", True), id="r1"),
    pytest.param({**_DEEPSEEK, "checkpoint": "deepseek-ai/DeepSeek-V3.1"},
                 ("deepseek-v3.1", "deepseek_v3", "deepseek_v31", False), id="v3.1"),
    pytest.param({**_DEEPSEEK, "checkpoint": "deepseek-ai/DeepSeek-V3-0324"},
                 ("deepseek-v3", None, "deepseek_v3", False), id="v3"),
    pytest.param({"architecture": "GptOssForCausalLM", "model_type": "gpt_oss"},
                 ("gpt-oss", "openai_gptoss", "openai", True), id="gpt-oss"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), CASES)
def test_a_known_model_gets_the_parsers_of_its_family(facts, expected):
    """Thoughts arrive as reasoning and tool calls as tool calls, without anybody naming a parser."""
    family = find_family(**facts)
    assert family is not None
    assert (
        family.name,
        family.reasoning_parser,
        family.tool_call_parser,
        family.thinks_by_default,
    ) == expected
    assert family.source


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({**_QWEN3, "checkpoint": "Qwen/Qwen3-Embedding-8B"}, id="embedding"),
        pytest.param({**_QWEN3, "checkpoint": "Qwen/Qwen3-Reranker-4B"}, id="reranker"),
        pytest.param({**_QWEN3_MOE, "checkpoint": "Qwen/Qwen3-30B-A3B-Base"}, id="base"),
        pytest.param(
            {**_QWEN3_MOE, "checkpoint": "/m", "max_position_embeddings": 262144}, id="edition-unknown"
        ),
        pytest.param({**_QWEN3_NEXT, "checkpoint": "/m"}, id="next-unknown"),
        pytest.param({**_DEEPSEEK, "checkpoint": "/m"}, id="deepseek-unknown"),
        pytest.param({"architecture": "LlamaForCausalLM", "model_type": "llama"}, id="no-family"),
        pytest.param({"architecture": "BertModel", "model_type": "bert"}, id="no-chat"),
    ],
)
def test_what_cannot_be_told_is_left_alone(facts):
    """A wrong parser swallows answers; where the edition isn't known none is set."""
    assert find_family(**facts) is None


def test_settings_name_only_parsers_that_the_version_ships():
    """A start never fails over a parser that came in a later version."""
    family = find_family(**_QWEN35_MOE)
    assert family_settings(family, "0.17.0") == (
        ("reasoning_parser", "qwen3"),
        ("enable_auto_tool_choice", True),
        ("tool_call_parser", "qwen3_coder"),
    )
    instruct = find_family(**_QWEN3_MOE, checkpoint="Qwen3-30B-A3B-Instruct-2507")
    assert [name for name, _ in family_settings(instruct, "0.25.1")] == [
        "enable_auto_tool_choice",
        "tool_call_parser",
    ]


@pytest.mark.parametrize("version", FLAG_VERSIONS)
def test_every_family_works_with_every_version(version):
    """All parsers named here exist from 0.17 on."""
    for case in CASES:
        family = find_family(**case.values[0])
        assert family.reasoning_parser is None or has_parser(version, "reasoning", family.reasoning_parser)
        assert family.tool_call_parser is None or has_parser(version, "tool", family.tool_call_parser)


def test_thinking_is_switched_by_the_template_argument():
    """The default of the stack file reaches the template under the name it reads."""
    assert thinking_kwargs(find_family(**_QWEN35), "off") == '{"enable_thinking": false}'
    assert json.loads(thinking_kwargs(find_family(**_QWEN3), "on")) == {"enable_thinking": True}
    v31 = find_family(**_DEEPSEEK, checkpoint="DeepSeek-V3.1")
    assert thinking_kwargs(v31, "on") == '{"thinking": true}'
    assert thinking_kwargs(find_family(**_DEEPSEEK, checkpoint="DeepSeek-R1"), "off") is None


def test_the_gateway_knows_the_thinking_families():
    """What the engine is started with and what the gateway sends are about the same switch."""
    for case in CASES:
        family = find_family(**case.values[0])
        found = FAMILIES[family.thinking_family]
        assert found.is_switchable == (family.thinking_family != "plain")
        assert not found.is_switchable or family.thinking_kwarg in found.switch_kwargs


def test_no_parser_where_there_is_no_tokenizer():
    """A parser looks its marks up in the tokenizer; vLLM ended with an AttributeError at its start."""
    bare = plan("1xh200", wish(DENSE_FP8, engine_args={"skip_tokenizer_init": True}))
    usual = plan("1xh200", wish(DENSE_FP8))

    names = ("reasoning_parser", "tool_call_parser", "enable_auto_tool_choice")
    assert [setting(bare, name) for name in names] == [None, None, None]
    assert setting(usual, "reasoning_parser") == "qwen3"
