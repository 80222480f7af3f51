"""Pure. How each family of models thinks: its switch, its tags, its template's demands, its sampling.

What the templates do was read from the published chat templates of Qwen3-32B, Qwen3.5-4B, GLM-4.5-Air
and DeepSeek-V3.1; the sampling sets are those of Qwen's model cards, and none where a card gives no set
for each mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from trimtab.errors import GatewayError

__all__ = ["FAMILIES", "PLAIN", "Sampling", "ThinkingFamily", "family_of_checkpoint", "find_thinking_family"]

# Request fields and the values that a mode wants, in the order they are written.
Sampling: TypeAlias = tuple[tuple[str, float | int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingFamily:
    """What the gateway must know to mean the same by "thinking" for every model.

    ``is_switchable``: the template reads one of ``switch_kwargs``, all of which are sent.
    ``knows_soft_switch``: the model was trained on /think and /no_think in the text.
    ``has_static_opener``: the prompt of a thinking turn already ends with the opening tag, so that only
    the closing tag comes out. ``needs_one_system``: the template refuses or drops a system or developer
    message that is not the one at the beginning. ``needs_user``: it refuses a conversation without a
    user's message. ``thinks_by_default``: what the model does when neither stack file nor request say.
    """

    name: str
    is_switchable: bool = True
    switch_kwargs: tuple[str, ...] = ("enable_thinking",)
    knows_soft_switch: bool = False
    has_static_opener: bool = False
    needs_one_system: bool = False
    needs_user: bool = False
    thinks_by_default: bool = True
    sampling_on: Sampling = ()
    sampling_off: Sampling = ()


# No thinking that a request could switch: everything passes as it is.
PLAIN: Final = ThinkingFamily(name="plain", is_switchable=False, thinks_by_default=False)

_QWEN3: Final = ThinkingFamily(
    name="qwen3",
    knows_soft_switch=True,
    # A late system message is rendered, one of role developer is dropped without a word.
    needs_one_system=True,
    # Qwen3 model card, "Best Practices".
    sampling_on=(("temperature", 0.6), ("top_p", 0.95), ("top_k", 20), ("min_p", 0)),
    sampling_off=(("temperature", 0.7), ("top_p", 0.8), ("top_k", 20), ("min_p", 0)),
)
_QWEN3_5: Final = ThinkingFamily(
    name="qwen3.5",
    has_static_opener=True,
    # The template raises "System message must be at the beginning.", and without a user's message too.
    needs_one_system=True,
    needs_user=True,
    # Qwen3.5 model card, the "general" rows of its table.
    sampling_on=(
        ("temperature", 1.0), ("top_p", 0.95), ("top_k", 20), ("min_p", 0), ("presence_penalty", 1.5),
    ),
    sampling_off=(
        ("temperature", 0.7), ("top_p", 0.8), ("top_k", 20), ("min_p", 0), ("presence_penalty", 1.5),
    ),
)  # fmt: skip

# 0.8B and 2B: the same template with its default turned round.
_QWEN3_5_SMALL: Final = replace(_QWEN3_5, name="qwen3.5-small", thinks_by_default=False)

# The model writes its opening tag itself; a thought that is off is an empty block in the prompt.
_GLM_4_5: Final = ThinkingFamily(
    name="glm-4.5",
    # A late system message is rendered, one of role developer is dropped without a word.
    needs_one_system=True,
)
_DEEPSEEK_V3_1: Final = ThinkingFamily(
    name="deepseek-v3.1",
    # The template's own word; llama.cpp derives it from the other, which vLLM's parser reads as well.
    switch_kwargs=("enable_thinking", "thinking"),
    has_static_opener=True,
    # System messages are put together by the template, one of role developer is dropped without a word.
    needs_one_system=True,
    thinks_by_default=False,
)

FAMILIES: Final[dict[str, ThinkingFamily]] = {
    family.name: family for family in (PLAIN, _QWEN3, _QWEN3_5, _QWEN3_5_SMALL, _GLM_4_5, _DEEPSEEK_V3_1)
}

# Parts of a checkpoint's name, lower case → family; the first that is inside decides. Qwen3's later
# editions have no switch: Instruct, Coder and Embedding never think, Thinking always does.
_BY_NAME: Final = (
    *((f"qwen3{dot}5-{size}b", "qwen3.5-small") for dot in "._" for size in ("0.8", "2")),
    ("qwen3.5", "qwen3.5"),
    ("qwen3_5", "qwen3.5"),
    # Same template as 3.5 in everything that is said here.
    ("qwen3.6", "qwen3.5"),
    ("qwen3_6", "qwen3.5"),
    *((f"qwen3-{other}", "plain") for other in ("next", "coder", "embedding", "reranker", "vl", "omni")),
    ("-2507", "plain"),
    ("qwen3-", "qwen3"),
    # GLM-4.7 and later open the thought in the prompt or cannot be switched: not these.
    ("glm-4.5v", "plain"),
    ("glm-4.6v", "plain"),
    ("glm-4.5", "glm-4.5"),
    ("glm-4.6", "glm-4.5"),
    ("deepseek-v3.1", "deepseek-v3.1"),
    ("deepseek-v3.2", "deepseek-v3.1"),
)


def find_thinking_family(name: str | None) -> ThinkingFamily:
    """The family of that name, ``plain`` for None; GatewayError names the legal ones."""
    if name is None:
        return PLAIN
    family = FAMILIES.get(name)
    if family is None:
        raise GatewayError(
            f"the family {name!r} is unknown to the gateway",
            status=500,
            code="unknown_family",
            hint=f"legal are {', '.join(FAMILIES)}",
        )
    return family


def family_of_checkpoint(checkpoint: str) -> str:
    """The family's name that a checkpoint's own name implies; ``plain`` where it implies none."""
    lowered = checkpoint.lower()
    for part, family in _BY_NAME:
        if part in lowered:
            return family
    return PLAIN.name
