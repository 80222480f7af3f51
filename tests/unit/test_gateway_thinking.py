"""Thinking means one thing: every switch, what wins, what contradicts, what an effort is worth."""

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.thinking import EFFORT_TOKENS, decide_thinking, reserve_answer_tokens
from trimtab.gateway.thinking_families import (
    FAMILIES,
    PLAIN,
    family_of_checkpoint,
    find_thinking_family,
)
from trimtab.gateway.thinking_words import find_soft_switch, strip_soft_switches

QWEN3, QWEN3_5 = FAMILIES["qwen3"], FAMILIES["qwen3.5"]
KWARGS = "chat_template_kwargs"


def user(text):
    return {"messages": [{"role": "user", "content": text}]}


def decide(document, **rest):
    return decide_thinking(document, **{"family": QWEN3_5} | rest)


SWITCHES = [
    pytest.param({KWARGS: {"enable_thinking": True}}, True, id="template-on"),
    pytest.param({KWARGS: {"enable_thinking": False}}, False, id="template-off"),
    pytest.param({"enable_thinking": True}, True, id="bare-on"),
    pytest.param({"enable_thinking": False}, False, id="bare-off"),
    pytest.param({"think": True}, True, id="ollama-on"),
    pytest.param({"reasoning_effort": "none"}, False, id="effort-none"),
    pytest.param({"reasoning_effort": "low"}, True, id="effort-low"),
    pytest.param({"thinking": {"type": "enabled", "budget_tokens": 5}}, True, id="anthropic-on"),
    pytest.param({"thinking": {"type": "disabled"}}, False, id="anthropic-off"),
    pytest.param({"thinking_budget": 0}, False, id="budget-nothing"),
    pytest.param(user("why? /think"), True, id="word-on"),
    pytest.param(user("why? /no_think"), False, id="word-off"),
]


@pytest.mark.parametrize("family", [QWEN3, QWEN3_5], ids=lambda family: family.name)
@pytest.mark.parametrize("default", [None, True, False])
@pytest.mark.parametrize(("document", "is_on"), SWITCHES)
def test_every_switch_means_the_same(document, is_on, default, family):
    """However a client says it, and whatever the default is, thinking is on or off as it said."""
    assert decide(document, default=default, family=family).is_on is is_on


@pytest.mark.parametrize(("document", "is_on"), SWITCHES)
def test_a_plain_model_is_left_alone(document, is_on):
    """A model without a switch gets what the client sent."""
    assert decide(document, family=PLAIN) is None


def test_a_small_model_thinks_only_when_told_to():
    """Qwen3.5 0.8B and 2B: their template's own default is off, and stays the default here."""
    small = FAMILIES["qwen3.5-small"]
    assert decide(user("why?"), family=small).is_on is False
    assert decide(user("why?"), family=small, default=True).is_on is True
    assert decide({"enable_thinking": True}, family=small).is_on is True


@pytest.mark.parametrize(
    ("default", "is_on"), [(None, True), (True, True), (False, False)], ids=["unsaid", "on", "off"]
)
def test_the_default_rules_when_nobody_says(default, is_on):
    """A request that says nothing gets the model's default."""
    decision = decide(user("hi"), default=default)

    assert (decision.is_on, decision.source, decision.budget_tokens) == (is_on, "default", None)


@pytest.mark.parametrize(("mode", "is_on"), [("thinking", True), ("instant", False)])
def test_a_virtual_name_is_a_switch(mode, is_on):
    """A client that can only choose a model can choose how it thinks."""
    assert decide({}, default=not is_on, mode=mode).is_on is is_on


def test_the_word_in_the_text_wins():
    """A person who types /no_think is obeyed, whatever the program around says."""
    document = user("hi /no_think") | {"reasoning_effort": "high"}

    decision = decide(document, mode="thinking")

    assert (decision.is_on, decision.source, decision.budget_tokens) == (False, "/no_think", None)


def test_the_word_switches_on_within_the_effort():
    """/think keeps the bound that the effort sets."""
    decision = decide(user("hi /think") | {"reasoning_effort": "low"})

    assert (decision.is_on, decision.budget_tokens) == (True, EFFORT_TOKENS["low"])


@pytest.mark.parametrize(
    ("document", "mode", "names"),
    [
        pytest.param(
            {KWARGS: {"enable_thinking": True}, "enable_thinking": False}, None,
            (f"{KWARGS}.enable_thinking", "enable_thinking"), id="two-flags",
        ),
        pytest.param({"enable_thinking": False, "reasoning_effort": "high"}, None,
                     ("enable_thinking", "reasoning_effort"), id="flag-effort"),
        pytest.param({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, None,
                     ("thinking", "reasoning_effort"), id="anthropic-effort"),
        pytest.param({"enable_thinking": False}, "thinking", ("enable_thinking", "model (:thinking)"),
                     id="flag-name"),
        pytest.param({"thinking_budget": 0, "enable_thinking": True}, None,
                     ("thinking_budget", "enable_thinking"), id="budget-flag"),
        pytest.param({"thinking_budget": 5, "thinking": {"type": "enabled", "budget_tokens": 6}}, None,
                     ("thinking_budget", "thinking.budget_tokens"), id="two-budgets"),
    ],
)  # fmt: skip
def test_fields_that_contradict_are_refused_by_name(document, mode, names):
    """Nobody has to guess which of two contradicting fields won: both are named."""
    with pytest.raises(GatewayError) as caught:
        decide(document, mode=mode)

    assert caught.value.status == 400
    assert all(name in caught.value.message for name in names)


def test_fields_that_agree_are_fine():
    """Saying the same twice is no fault."""
    document = {KWARGS: {"enable_thinking": True}, "enable_thinking": True, "reasoning_effort": "low"}

    assert decide(document, mode="thinking").is_on


@pytest.mark.parametrize(
    ("document", "param"),
    [
        pytest.param({"enable_thinking": "false"}, "enable_thinking", id="text-flag"),
        pytest.param({KWARGS: {"enable_thinking": 1}}, f"{KWARGS}.enable_thinking", id="number-flag"),
        pytest.param({KWARGS: "x"}, KWARGS, id="text-kwargs"),
        pytest.param({"reasoning_effort": "huge"}, "reasoning_effort", id="effort"),
        pytest.param({"reasoning_effort": 3}, "reasoning_effort", id="effort-number"),
        pytest.param({"thinking": {"type": "maybe"}}, "thinking", id="anthropic"),
        pytest.param({"thinking": []}, "thinking", id="anthropic-list"),
        pytest.param({"thinking": {"type": []}}, "thinking", id="anthropic-type-list"),
        pytest.param(
            {"thinking": {"type": "enabled", "budget_tokens": -1}},
            "thinking.budget_tokens",
            id="anthropic-negative",
        ),
        pytest.param({"thinking_budget": -5}, "thinking_budget", id="negative"),
        pytest.param({"thinking_budget": True}, "thinking_budget", id="budget-flag"),
    ],
)
def test_a_value_that_means_nothing_is_refused(document, param):
    """The text "false", which a template would take for true, is a 400 and not a surprise."""
    with pytest.raises(GatewayError) as caught:
        decide(document)

    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("document", "budget"),
    [
        pytest.param({"reasoning_effort": "high"}, EFFORT_TOKENS["high"], id="effort"),
        pytest.param({"thinking_budget": 77, "reasoning_effort": "high"}, 77, id="number-before-effort"),
        pytest.param({"thinking_token_budget": 7}, 7, id="engine-name"),
        pytest.param({KWARGS: {"thinking_budget": 9}}, 9, id="template-name"),
        pytest.param({"thinking": {"type": "enabled", "budget_tokens": 8}}, 8, id="anthropic"),
        pytest.param({"thinking_budget": -1}, None, id="unbounded"),
        pytest.param({"enable_thinking": True}, None, id="none"),
    ],
)
def test_how_long_a_thought_may_be(document, budget):
    """Effort or number, the thought gets a bound in tokens."""
    assert decide(document).budget_tokens == budget


def test_a_background_call_does_not_think_unless_it_says_so():
    """A title costs no thought, even under model:thinking; who asks for thought in so many words gets it."""
    assert decide({}, is_background=True, mode="thinking", default=True).is_on is False
    assert decide({"enable_thinking": True}, is_background=True).is_on is True
    assert decide(user("title of: x /think"), is_background=True).is_on is False


@pytest.mark.parametrize(
    ("budget", "max_tokens", "expected"),
    [
        pytest.param(None, None, None, id="no-limits"),
        pytest.param(500, None, 500, id="no-max"),
        pytest.param(None, 1000, 750, id="no-budget"),
        pytest.param(16384, 1000, 750, id="too-much"),
        pytest.param(100, 1000, 100, id="fits"),
        pytest.param(None, 100_000, 98_976, id="long"),
        pytest.param(None, 5, 3, id="tiny"),
        pytest.param(None, 2, 1, id="two"),
        pytest.param(None, 1, None, id="one"),
    ],
)
def test_an_answer_keeps_its_share_of_max_tokens(budget, max_tokens, expected):
    """A thought never eats the whole limit."""
    assert reserve_answer_tokens(budget, max_tokens=max_tokens) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/think", "/think"),
        ("hi\n/no_think \n", "/no_think"),
        ("see /think/x", None),
        ("/no_think please", None),
        ("x/think", None),
        ("see /usr/think", None),
        ("/thinking", None),
        ("/no_thinking", None),
        ("", None),
    ],
)
def test_only_a_standalone_last_word_is_a_switch(text, found):
    """A path or a word in the middle is text."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": text}, {"type": "image_url"}]
    history = [{"role": "assistant", "content": "y"}, {"role": "tool", "content": "/think"}]

    assert find_soft_switch([{"role": "user", "content": text}, *history]) == found
    assert find_soft_switch([{"role": "user", "content": parts}]) == found


@pytest.mark.parametrize("messages", [None, "x", [], [3], [{"role": "user"}], [{"role": "system"}]])
def test_odd_messages_hold_no_switch(messages):
    """What is no conversation is left to the engine to refuse."""
    assert find_soft_switch(messages) is None


def test_switches_are_stripped_from_every_users_turn_only():
    """A model that does not know the word never reads it, and nothing else of the text changes."""
    messages = [
        {"role": "system", "content": "s /think"},
        {"role": "user", "content": "a /no_think", "name": "n"},
        {"role": "assistant", "content": "b /think"},
        {"role": "user", "content": [{"type": "text", "text": "c\n/think"}, {"type": "image_url"}]},
        {"role": "user", "content": "see /think/x"},
    ]

    stripped = strip_soft_switches(messages)

    assert stripped[1] == {"role": "user", "content": "a", "name": "n"}
    assert stripped[3]["content"] == [{"type": "text", "text": "c"}, {"type": "image_url"}]
    assert [stripped[at] is messages[at] for at in (0, 2, 4)] == [True] * 3


@pytest.mark.parametrize(
    ("checkpoint", "family"),
    [
        ("Qwen/Qwen3-32B", "qwen3"),
        ("Qwen/Qwen3-30B-A3B-FP8", "qwen3"),
        ("Qwen/Qwen3.5-27B-FP8", "qwen3.5"),
        ("unsloth/Qwen3.6-27B-GGUF:Q4_K_M", "qwen3.5"),
        ("Qwen/Qwen3.5-2B", "qwen3.5-small"),
        ("unsloth/Qwen3.5-0.8B-GGUF:Q4_K_M", "qwen3.5-small"),
        ("Qwen/Qwen3.5-122B-A10B-FP8", "qwen3.5"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "plain"),
        ("Qwen/Qwen3-Coder-Next", "plain"),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5"),
        ("unsloth/GLM-4.6-GGUF:Q4_K_M", "glm-4.5"),
        ("zai-org/GLM-4.6V", "plain"),
        ("zai-org/GLM-4.7", "plain"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1"),
        ("deepseek-ai/DeepSeek-R1-0528", "plain"),
        ("smollm2-135m", "plain"),
        ("/models/Qwen3-4B-Q4.gguf", "qwen3"),
    ],
)
def test_a_checkpoints_name_tells_its_family(checkpoint, family):
    """Nobody has to write the family of a well-known model."""
    assert family_of_checkpoint(checkpoint) == family


def test_an_unknown_family_is_named_with_the_legal_ones():
    """A wrong family in the stack file is told, not ignored."""
    assert find_thinking_family(None) is PLAIN
    with pytest.raises(GatewayError, match="qwen9") as caught:
        find_thinking_family("qwen9")
    assert "qwen3.5" in caught.value.hint
