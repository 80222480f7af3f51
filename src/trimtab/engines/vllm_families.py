"""Pure. Which of vLLM's parsers understand a model's output, and which template argument switches thinking.

A family is told from config.json's architecture and model_type; where editions of one architecture
differ (Qwen3's Instruct and Thinking, DeepSeek's V3 and R1), from the repository's name. What can't be
told is None: a wrong parser hides answers, none merely shows tags. How a request's thinking is switched
and sampled is the gateway's (gateway.thinking_families); the name of its family is carried here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from trimtab.core.stack import SettingValue, ThinkingDefault
from trimtab.engines.vllm_flags import has_parser

__all__ = ["ModelFamily", "ThinkingKwarg", "family_settings", "find_family", "thinking_kwargs"]

ThinkingKwarg: TypeAlias = Literal["enable_thinking", "thinking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """What a server must be told about one family of chat models.

    ``reasoning_parser`` and ``tool_call_parser`` are vLLM's names, None when nothing is to be parsed;
    ``thinking_kwarg`` is the chat-template argument that switches thinking, None without a switch.
    ``presets_think``: the prompt of a thinking turn already ends with the opening tag, so that only
    the closing one is generated. ``thinks_by_default``: without any argument the model thinks.
    ``thinking_family`` is the gateway's name for how requests are switched, "plain" for not at all.
    """

    name: str
    reasoning_parser: str | None
    tool_call_parser: str | None
    source: str
    thinking_kwarg: ThinkingKwarg | None = None
    presets_think: bool = False
    thinks_by_default: bool = False
    thinking_family: str = "plain"


_QWEN_SOURCE: Final = "chat templates of Qwen3-32B and Qwen3.5-4B; vLLM 0.25.1 parser/qwen3.py"
_QWEN3: Final = ModelFamily(
    name="qwen3",
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
    source=_QWEN_SOURCE,
    thinking_kwarg="enable_thinking",
    thinks_by_default=True,
    thinking_family="qwen3",
)
# The later editions: one never thinks, one always does; neither has a switch. The qwen3 parser takes
# text without tags for thought, hence no parser for those that never think.
_QWEN3_INSTRUCT: Final = ModelFamily(
    name="qwen3-instruct", reasoning_parser=None, tool_call_parser="hermes", source=_QWEN_SOURCE
)
_QWEN3_THINKING: Final = ModelFamily(
    name="qwen3-thinking",
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
    source=_QWEN_SOURCE,
    presets_think=True,
    thinks_by_default=True,
)
_QWEN3_CODER: Final = ModelFamily(
    name="qwen3-coder", reasoning_parser=None, tool_call_parser="qwen3_coder", source=_QWEN_SOURCE
)
_QWEN3_5: Final = ModelFamily(
    name="qwen3.5",
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_coder",
    source=_QWEN_SOURCE,
    thinking_kwarg="enable_thinking",
    presets_think=True,
    thinks_by_default=True,
    thinking_family="qwen3.5",
)
_DEEPSEEK_SOURCE: Final = "vLLM 0.25.1 reasoning/deepseek_v3_reasoning_parser.py and tool_parsers"
_DEEPSEEK_V3: Final = ModelFamily(
    name="deepseek-v3", reasoning_parser=None, tool_call_parser="deepseek_v3", source=_DEEPSEEK_SOURCE
)
_DEEPSEEK_R1: Final = ModelFamily(
    name="deepseek-r1",
    reasoning_parser="deepseek_r1",
    tool_call_parser="deepseek_v3",
    source=_DEEPSEEK_SOURCE,
    presets_think=True,
    thinks_by_default=True,
)
_DEEPSEEK_V31: Final = ModelFamily(
    name="deepseek-v3.1",
    reasoning_parser="deepseek_v3",
    tool_call_parser="deepseek_v31",
    source=_DEEPSEEK_SOURCE,
    thinking_kwarg="thinking",
    presets_think=True,
    thinking_family="deepseek-v3.1",
)

# model_type of config.json (or of its text_config) → family, where nothing else is needed.
_BY_MODEL_TYPE: Final[dict[str, ModelFamily]] = {
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "deepseek_v32": replace(
        _DEEPSEEK_V31, name="deepseek-v3.2", tool_call_parser="deepseek_v32"
    ),
    "gpt_oss": ModelFamily(
        name="gpt-oss",
        reasoning_parser="openai_gptoss",
        tool_call_parser="openai",
        source="vLLM 0.25.1 reasoning/gptoss_reasoning_parser.py",
        thinks_by_default=True,
    ),
    "llama4": ModelFamily(
        name="llama4", reasoning_parser=None, tool_call_parser="llama4_pythonic",
        source="vLLM 0.25.1 tool_parsers/llama4_pythonic_tool_parser.py",
    ),
    "minimax_m2": ModelFamily(
        name="minimax-m2", reasoning_parser="minimax_m2", tool_call_parser="minimax_m2",
        source="vLLM 0.25.1 parser/minimax_m2.py", presets_think=True, thinks_by_default=True,
    ),
    "seed_oss": ModelFamily(
        name="seed-oss", reasoning_parser="seed_oss", tool_call_parser="seed_oss",
        source="vLLM 0.25.1 parser/seed_oss.py", thinks_by_default=True,
    ),
}  # fmt: skip
_TEXT_SUFFIX: Final = "_text"

# Parts of a repository's name, in lower case, that tell editions of one architecture apart.
_QWEN3_EDITIONS: Final = (
    ("coder", _QWEN3_CODER),
    ("thinking", _QWEN3_THINKING),
    ("instruct", _QWEN3_INSTRUCT),
)
_NEVER_CHATS: Final = ("embedding", "reranker", "-base", "reward")
# Qwen3 of April 2025, the one with a switch, ends here; later editions take 262,144 tokens.
_QWEN3_HYBRID_CONTEXT: Final = 131_072
# Qwen3.5 0.8B and 2B don't think unless told to (their template is inverted); hidden sizes of config.json.
_QWEN3_5_SMALL_HIDDEN: Final = {"qwen3_5": (1024, 2048)}


def find_family(
    *,
    architecture: str,
    model_type: str,
    checkpoint: str = "",
    hidden_size: int | None = None,
    max_position_embeddings: int | None = None,
) -> ModelFamily | None:
    """The family of a chat model, or None when it isn't known or doesn't chat.

    ``checkpoint`` is the repository or folder as written; its name decides only where editions of one
    architecture differ.
    """
    name = checkpoint.rstrip("/").rpartition("/")[2].lower()
    kind = model_type.removesuffix(_TEXT_SUFFIX)
    if any(word in name for word in _NEVER_CHATS) or not architecture.endswith(
        ("ForCausalLM", "ForConditionalGeneration")
    ):
        return None
    if kind in {"qwen3", "qwen3_moe", "qwen3_next"}:
        return _qwen3_edition(kind, name, max_position_embeddings)
    if kind == "deepseek_v3":
        return _deepseek_edition(name)
    family = _BY_MODEL_TYPE.get(kind)
    if family is _QWEN3_5 and hidden_size in _QWEN3_5_SMALL_HIDDEN.get(kind, ()):
        return replace(family, thinks_by_default=False, thinking_family="qwen3.5-small")
    return family


def _qwen3_edition(kind: str, name: str, max_position_embeddings: int | None) -> ModelFamily | None:
    for word, family in _QWEN3_EDITIONS:
        if word in name:
            return family
    is_later = kind == "qwen3_next" or "2507" in name
    is_long = max_position_embeddings is not None and max_position_embeddings > _QWEN3_HYBRID_CONTEXT
    return None if is_later or is_long else _QWEN3


def _deepseek_edition(name: str) -> ModelFamily | None:
    if "r1" in name.replace("_", "-").split("-"):
        return _DEEPSEEK_R1
    if "v3.1" in name or "v3_1" in name:
        return _DEEPSEEK_V31
    return _DEEPSEEK_V3 if "v3" in name else None


def family_settings(family: ModelFamily, version: str) -> tuple[tuple[str, SettingValue], ...]:
    """Arguments for the family, as far as that version ships the parsers."""
    pairs: list[tuple[str, SettingValue]] = []
    if family.reasoning_parser and has_parser(version, "reasoning", family.reasoning_parser):
        pairs.append(("reasoning_parser", family.reasoning_parser))
    if family.tool_call_parser and has_parser(version, "tool", family.tool_call_parser):
        pairs += [("enable_auto_tool_choice", True), ("tool_call_parser", family.tool_call_parser)]
    return tuple(pairs)


def thinking_kwargs(family: ModelFamily, default: ThinkingDefault) -> str | None:
    """``default_chat_template_kwargs`` as JSON text for the wished default; None without a switch."""
    if family.thinking_kwarg is None:
        return None
    return json.dumps({family.thinking_kwarg: default == "on"})
