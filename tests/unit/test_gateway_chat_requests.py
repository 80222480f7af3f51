"""What an engine gets for a chat request: one flag, a bound, history by one name, visible repairs."""

import json

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.message_history import normalise_history
from trimtab.gateway.reasoning_form import AnswerShape
from trimtab.gateway.repair import (
    ALL_REPAIRS,
    choose_repairs,
    merge_system_messages,
    unwrap_extra_body,
)
from trimtab.gateway.repair_background import recognise_background
from trimtab.gateway.thinking import EFFORT_TOKENS, SWITCH_FIELDS
from trimtab.gateway.thinking_families import FAMILIES, PLAIN
from trimtab.gateway.thinking_request import ChatSettings, prepare_chat

QWEN3, QWEN3_5 = FAMILIES["qwen3"], FAMILIES["qwen3.5"]
KWARGS = "chat_template_kwargs"
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def user(text, **rest):
    return {"messages": [{"role": "user", "content": text}], **rest}


def prepare(document, **rest):
    settings = {"family": QWEN3_5, "engine": "vllm", "repairs": frozenset(ALL_REPAIRS)}
    return prepare_chat(document, ChatSettings(**settings | rest))


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp", "external"])
@pytest.mark.parametrize(
    ("fields", "is_on"),
    [
        ({}, True),
        ({"enable_thinking": False}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"think": False, KWARGS: {"other": 1}}, False),
        ({"thinking_budget": 9}, True),
    ],
)
def test_the_engine_gets_one_flag_in_the_one_place(fields, is_on, engine):
    """Whatever the client sent, the template's own flag is set, and nothing else can contradict it."""
    sent = prepare(user("hi", **fields), engine=engine).document

    assert sent[KWARGS] == {"enable_thinking": is_on} | ({"other": 1} if KWARGS in fields else {})
    assert not set(SWITCH_FIELDS) & (sent.keys() - {"thinking_token_budget"})


DEEPSEEK = FAMILIES["deepseek-v3.1"]


@pytest.mark.parametrize(
    ("family", "fields", "sent"),
    [
        pytest.param("glm-4.5", {}, {"enable_thinking": True}, id="glm-default"),
        pytest.param("glm-4.5", {"think": False}, {"enable_thinking": False}, id="glm-off"),
        pytest.param(
            "deepseek-v3.1", {}, {"enable_thinking": False, "thinking": False}, id="deepseek-default"),
        pytest.param(
            "deepseek-v3.1", {"reasoning_effort": "low"}, {"enable_thinking": True, "thinking": True},
            id="deepseek-effort"),
        pytest.param(
            "deepseek-v3.1", {KWARGS: {"thinking": True}}, {"enable_thinking": True, "thinking": True},
            id="deepseek-own-word"),
    ],
)  # fmt: skip
def test_each_family_is_switched_by_its_templates_own_words(family, fields, sent):
    """One wish of a client, whatever the template calls it, and no sampling that its card does not give."""
    prepared = prepare(user("hi /think_not", **fields), family=FAMILIES[family])

    assert prepared.document[KWARGS] == sent
    assert "temperature" not in prepared.document
    is_on = sent["enable_thinking"]
    assert prepared.shape.is_thinking == is_on
    assert prepared.shape.starts_inside == (is_on and family == "deepseek-v3.1")


def test_a_templates_own_word_contradicts_as_any_other():
    """DeepSeek's word counts for DeepSeek, and is another template's business elsewhere."""
    document = user("hi", enable_thinking=False, **{KWARGS: {"thinking": True}})
    with pytest.raises(GatewayError, match=r"chat_template_kwargs\.thinking switches thinking on"):
        prepare(document, family=DEEPSEEK)
    assert prepare(document).document[KWARGS] == {"thinking": True, "enable_thinking": False}


def test_a_word_that_these_do_not_know_is_taken_out():
    """/no_think is a switch for everybody, and text for nobody."""
    for name in ("glm-4.5", "deepseek-v3.1"):
        prepared = prepare(user("hi /no_think"), family=FAMILIES[name])
        assert prepared.document["messages"][0]["content"] == "hi"
        assert prepared.decision.is_on is False


def test_unknown_fields_and_images_pass_untouched():
    """What the gateway does not know is the engine's business."""
    parts = [{"type": "text", "text": "what is this"}, IMAGE]
    document = user(parts, mystery={"a": [1]}, tools=[], user="u")

    sent = prepare(document).document

    assert {name: sent[name] for name in document} == document


def test_a_plain_model_gets_the_same_object():
    """Nothing is rewritten for a model without a switch, and its answer passes as bytes."""
    document = user("hi /no_think", enable_thinking=False, reasoning_effort="none")

    prepared = prepare(document, family=PLAIN, engine="llama_cpp")

    assert prepared.document is document
    assert (prepared.shape, prepared.decision, prepared.repairs) == (None, None, ())


@pytest.mark.parametrize(
    ("engine", "rest", "shape"),
    [
        pytest.param("vllm", {}, AnswerShape(is_plain=True), id="vllm"),
        pytest.param("external", {}, AnswerShape(is_plain=True), id="external"),
        pytest.param("llama_cpp", {"form": "both", "is_form_wished": True}, AnswerShape(is_plain=True),
                     id="wished"),
        pytest.param("llama_cpp", {"form": "none"}, AnswerShape(is_plain=True, form="none"), id="none"),
    ],
)  # fmt: skip
def test_a_plain_models_fields_are_renamed_where_needed(engine, rest, shape):
    """An engine that says only ``reasoning`` serves clients that read only ``reasoning_content``."""
    assert prepare(user("hi"), family=PLAIN, engine=engine, **rest).shape == shape


@pytest.mark.parametrize(
    ("engine", "fields", "expected"),
    [
        pytest.param("vllm", {"reasoning_effort": "low"}, ("thinking_token_budget", 1024), id="vllm"),
        pytest.param("vllm", {"max_tokens": 1000}, ("thinking_token_budget", 750), id="reserve"),
        pytest.param("vllm", {"max_completion_tokens": 100, "max_tokens": 1000},
                     ("thinking_token_budget", 75), id="smallest-limit"),
    ],
)  # fmt: skip
def test_a_thought_is_bounded_by_the_engine(engine, fields, expected):
    """The engine ends the thought itself, in time for an answer."""
    prepared = prepare(user("hi", **fields), engine=engine)

    assert prepared.document[expected[0]] == expected[1] == prepared.budget_tokens


def test_no_bound_is_sent_where_nothing_sets_one():
    """A request without limits thinks as long as it likes."""
    sent = prepare(user("hi")).document

    assert "thinking_token_budget" not in sent
    assert "thinking_token_budget" not in prepare(user("hi /no_think", max_tokens=50)).document


@pytest.mark.parametrize("engine", ["external", "llama_cpp"])
def test_an_engine_without_a_bound_of_its_own_gets_none(engine):
    """What an engine may not know is not sent; the gateway watches instead."""
    prepared = prepare(user("hi", reasoning_effort="low"), engine=engine)

    assert prepared.budget_tokens == EFFORT_TOKENS["low"]
    assert not {"thinking_token_budget", "reasoning_budget_tokens"} & prepared.document.keys()


@pytest.mark.parametrize("family", [QWEN3, QWEN3_5], ids=lambda family: family.name)
@pytest.mark.parametrize("is_on", [True, False])
def test_sampling_follows_the_mode(family, is_on):
    """The two modes want different sampling, and get it."""
    sent = prepare(user("hi", enable_thinking=is_on), family=family).document

    for name, value in family.sampling_on if is_on else family.sampling_off:
        assert sent[name] == value


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0.1}, {"presence_penalty": 0}])
def test_a_client_that_samples_its_own_way_is_left_alone(fields):
    """A greedy request stays greedy, with nothing added."""
    sent = prepare(user("hi", **fields)).document

    assert {name: sent[name] for name in sent if name in dict(QWEN3_5.sampling_on)} == fields


def test_the_soft_switch_reaches_only_models_that_know_it():
    """The word is passed to Qwen3 and taken out for Qwen3.5."""
    assert prepare(user("hi /think"), family=QWEN3).document["messages"][0]["content"] == "hi /think"
    assert prepare(user("hi /think")).document["messages"][0]["content"] == "hi"


@pytest.mark.parametrize(
    ("family", "is_on", "starts_inside"),
    [(QWEN3, True, False), (QWEN3_5, True, True), (QWEN3_5, False, False)],
)
def test_the_answer_is_read_by_what_was_sent(family, is_on, starts_inside):
    """The gateway knows the flag it sent, and where the thought begins."""
    shape = prepare(user("hi", enable_thinking=is_on, stop=["x"]), family=family).shape

    assert shape == AnswerShape(is_thinking=is_on, starts_inside=starts_inside, has_stop_words=True)


def test_a_client_that_wants_no_thought_gets_none():
    """The field of vLLM that hides a thought is understood."""
    assert prepare(user("hi", include_reasoning=False)).shape.form == "none"


HISTORY = [
    pytest.param({"content": "a", "reasoning": "r"}, ("a", "r"), id="new-name"),
    pytest.param({"content": "a", "reasoning_content": "r"}, ("a", "r"), id="old-name"),
    pytest.param({"content": "a", "reasoning_content": "r", "reasoning": "r"}, ("a", "r"), id="both-names"),
    pytest.param({"content": "<think>\nr\n</think>\n\na"}, ("a", "r"), id="inline"),
    pytest.param({"content": "r\n</think>\n\na"}, ("a", "r"), id="lone-closer"),
    pytest.param({"content": "<think>r"}, ("", "r"), id="unclosed"),
    pytest.param({"content": "a", "reasoning": None}, ("a", None), id="null"),
    pytest.param({"content": "use `</think>` here"}, ("use `</think>` here", None), id="text"),
    pytest.param({"content": "a </think> b"}, ("a </think> b", None), id="mid-line"),
    pytest.param({"content": None, "tool_calls": [1]}, (None, None), id="call"),
    pytest.param({"content": None, "tool_calls": [1], "reasoning": "r"}, (None, "r"), id="thought-call"),
]


@pytest.mark.parametrize(("fields", "expected"), HISTORY)
def test_history_is_understood_in_every_form(fields, expected):
    """Earlier thoughts reach the template in the field it reads, whichever client sent them back."""
    (message,) = normalise_history([{"role": "assistant", **fields}])

    assert (message["content"], message.get("reasoning_content")) == expected
    assert "reasoning" not in message
    assert message.get("tool_calls") == fields.get("tool_calls")


def test_history_in_parts_and_other_roles():
    """A thought in the first text part is found; a user's text is never touched."""
    messages = [
        {"role": "user", "content": "<think>x</think>y"},
        {"role": "assistant", "content": [{"type": "text", "text": "<think>r</think>a"}, IMAGE]},
        "odd",
    ]

    changed = normalise_history(messages)

    assert changed[0] is messages[0]
    assert changed[2] == "odd"
    assert changed[1]["content"] == [{"type": "text", "text": "a"}, IMAGE]
    assert changed[1]["reasoning_content"] == "r"


def message(role, content="x"):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([message("system", "A"), message("system", "B"), message("user")],
                     [message("system", "A\n\nB"), message("user")], id="two"),
        pytest.param([message("user", "1"), message("assistant", "2"), message("system", "S"),
                      message("user", "3")],
                     [message("system", "S"), message("user", "1"), message("assistant", "2"),
                      message("user", "3")], id="late"),
        pytest.param([message("user", "hello"), message("system", "you are")],
                     [message("system", "you are"), message("user", "hello")], id="voice-product"),
        pytest.param([message("developer", "D"), message("user")],
                     [message("system", "D"), message("user")], id="developer"),
        pytest.param([message("system", [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]),
                      message("developer", "D"), message("user")],
                     [message("system", "A\nB\n\nD"), message("user")], id="parts"),
        pytest.param([message("system", None), message("system", "B"), message("user")],
                     [message("system", "B"), message("user")], id="empty"),
    ],
)  # fmt: skip
def test_system_messages_become_one(messages, expected):
    """Titles, agents and plugins that send several system messages get an answer, not a 400."""
    prepared = prepare({"messages": messages})

    assert prepared.document["messages"] == expected
    assert prepared.repairs == ("system-messages",)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([message("system", "A"), message("user")], id="in-order"),
        pytest.param([message("user")], id="none"),
        pytest.param([message("system", [IMAGE]), message("system"), message("user")], id="image"),
        pytest.param("odd", id="odd"),
        pytest.param([3], id="odd-entry"),
        pytest.param([], id="empty"),
    ],
)
def test_messages_in_order_are_the_same_object(messages):
    """What needs no repair is not touched."""
    document = {"messages": messages}

    assert merge_system_messages(document) is document


def test_a_request_without_a_users_message_says_what_is_missing():
    """The reason is told before the template fails on it."""
    with pytest.raises(GatewayError, match="role user") as caught:
        prepare({"messages": [message("system"), message("assistant")]})
    assert caught.value.status == 400
    prepare({"messages": [message("system"), message("assistant")]}, family=QWEN3)


@pytest.mark.parametrize("wrap", [lambda value: value, json.dumps], ids=["object", "text"])
def test_a_literal_extra_body_is_unwrapped(wrap):
    """A field that OpenAI's client would have spread is spread here, and the switch inside it works."""
    document = user("hi", extra_body=wrap({KWARGS: {"enable_thinking": False}, "top_k": 3}))

    prepared = prepare(document)

    assert prepared.document[KWARGS] == {"enable_thinking": False}
    assert (prepared.document["top_k"], prepared.repairs) == (3, ("extra-body",))
    assert "extra_body" not in prepared.document


def test_an_extra_body_that_contradicts_is_refused():
    """Inside and outside must not differ."""
    with pytest.raises(GatewayError, match=r"top_k and extra_body\.top_k") as caught:
        unwrap_extra_body({"top_k": 1, "extra_body": {"top_k": 2}})
    assert caught.value.status == 400
    assert unwrap_extra_body({"top_k": 1, "extra_body": {"top_k": 1}}) == {"top_k": 1}


@pytest.mark.parametrize("extra", ["no json", 3, None, [], "[1]"])
def test_an_extra_body_that_is_no_object_passes(extra):
    """An unknown field is the engine's business."""
    document = {"extra_body": extra}

    assert unwrap_extra_body(document) is document


# The headings, the block and the JSON keys of Open WebUI's default prompts; the sentences are ours.
def task(key, history="USER: hi"):
    return (
        f'### Task:\nDo something.\n### Output:\nJSON format: {{ "{key}": "..." }}\n'
        f"### Chat History:\n<chat_history>\n{history}\n</chat_history>"
    )


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("title", "title_generation"),
        ("tags", "tags_generation"),
        ("follow_ups", "follow_up_generation"),
        ("queries", "query_generation"),
        ("prompt", "image_prompt_generation"),
        ("text", "autocomplete_generation"),
    ],
)
@pytest.mark.parametrize("by_header", [True, False], ids=["header", "body"])
def test_background_calls_cost_no_thought_and_few_tokens(key, kind, by_header):
    """A chat's title does not think for thousands of tokens, nor hold the only slot for long."""
    document = user("any prompt" if by_header else task(key), max_tokens=1000, stream=False)

    prepared = prepare(document, task_header=kind if by_header else None, default_is_on=True)

    assert prepared.document[KWARGS] == {"enable_thinking": False}
    assert prepared.document["max_tokens"] == 256
    assert prepared.repairs == (f"background-call={kind}",)
    assert prepared.shape.is_thinking is False


def test_a_background_call_without_a_limit_gets_one():
    """Follow-up and tag calls come without any limit."""
    assert prepare(user(task("tags"))).document["max_tokens"] == 256
    assert prepare(user(task("tags"), max_completion_tokens=9)).document.get("max_tokens") is None


def test_a_background_call_of_a_plain_model_is_bounded_too():
    """The one slot of a small machine is free again soon."""
    assert prepare(user(task("title")), family=PLAIN, engine="llama_cpp").document["max_tokens"] == 256


def test_a_summary_is_not_cut():
    """What is long by nature only loses its thought."""
    sent = prepare(user("sum up"), task_header="context_compaction").document

    assert "max_tokens" not in sent
    assert sent[KWARGS] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(user(task("title"), stream=True), id="streamed"),
        pytest.param(user(task("title"), tools=[1]), id="tools"),
        pytest.param(user("### Task:\nAnswer from the <context>"), id="retrieval"),
        pytest.param(user("### Task:\n<chat_history>nothing asked"), id="no-key"),
        pytest.param(user("please " + task("title")), id="no-heading"),
        pytest.param({"messages": [message("system"), message("user", task("title"))]}, id="two-messages"),
        pytest.param(user([{"type": "text", "text": task("title")}]), id="parts"),
        pytest.param({"messages": None}, id="nothing"),
    ],
)
def test_a_persons_request_is_not_taken_for_a_background_call(document):
    """A person who asks for a title in so many words gets a full answer."""
    assert recognise_background(document, header=None) is None


@pytest.mark.parametrize("header", ["", "moa_response_generation", "nonsense"])
def test_a_header_decides_alone(header):
    """With the header set, the text of a message is not looked at."""
    assert recognise_background(user(task("title")), header=header) is None


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "greet")]


def choice(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("family", [QWEN3_5, PLAIN], ids=["qwen3.5", "plain"])
def test_llama_cpp_gets_the_one_tool_that_must_be_called(family):
    """It reads the choice as one of three words; a name would be taken for "auto" without a word."""
    document = user("hi", tools=TOOLS, tool_choice=choice("greet"))

    prepared = prepare(document, family=family, engine="llama_cpp")

    assert prepared.document["tools"] == [TOOLS[1]]
    assert prepared.document["tool_choice"] == "required"
    assert prepared.repairs == ("tool-choice",)
    for rest in ({"engine": "vllm"}, {"engine": "llama_cpp", "repairs": frozenset()}):
        assert prepare(document, **rest).document["tool_choice"] == choice("greet")


@pytest.mark.parametrize(
    ("tools", "wanted"),
    [
        pytest.param(TOOLS, "auto", id="word"),
        pytest.param(TOOLS, choice("nobody"), id="unknown"),
        pytest.param(TOOLS, {"type": "function"}, id="no-name"),
        pytest.param(TOOLS, {"function": {"name": ["look"]}}, id="odd-name"),
        pytest.param([None, {"function": "look"}], choice("look"), id="odd-tools"),
        pytest.param("look", choice("look"), id="no-list"),
    ],
)
def test_a_tool_choice_that_says_nothing_else_passes(tools, wanted):
    """What cannot be read is the engine's business."""
    document = user("hi", tools=tools, tool_choice=wanted)

    assert prepare(document, family=PLAIN, engine="llama_cpp").document is document


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, set(ALL_REPAIRS)),
        ("none", set()),
        ("all", set(ALL_REPAIRS)),
        ("extra-body, background-call", {"extra-body", "background-call"}),
    ],
)
def test_repairs_can_be_switched_off(header, expected):
    """Who wants the engine's own answer to an odd request gets it."""
    repairs = choose_repairs(header)
    document = {"messages": [message("user", task("title")), message("system")], "extra_body": {"a": 1}}

    assert repairs == expected
    if not expected:
        assert prepare(document, family=PLAIN, repairs=repairs).document is document
        assert len(prepare(document, repairs=repairs).document["messages"]) == 2


def test_an_unknown_repair_is_refused_with_the_legal_ones():
    """A wrong word is told, not ignored."""
    with pytest.raises(GatewayError, match="extrabody") as caught:
        choose_repairs("extrabody")
    assert "system-messages" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"enable_thinking": False}, "enable_thinking", id="field"),
        pytest.param(
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
            id="kwargs",
        ),
        pytest.param({"think": True, "reasoning_effort": "low"}, "think,reasoning_effort", id="two"),
    ],
)
def test_a_switch_that_a_plain_model_has_not_is_said(fields, named):
    """The field goes to the engine as it was sent, and the header tells that nothing was switched."""
    document = {"messages": [user("hi")]} | fields
    prepared = prepare(document, family=FAMILIES["plain"])

    assert prepared.document is document
    assert prepared.headers()["x-trimtab-thinking"] == f"not switched; family=plain; passed on={named}"


def test_a_plain_request_has_no_such_header():
    """Nothing was asked, so nothing is told."""
    assert "x-trimtab-thinking" not in prepare({"messages": []}, family=FAMILIES["plain"]).headers()
