"""A tool that must be called is called, on the real llama.cpp, whether its template knows tools or not."""

import json

import anthropic
import openai
import pytest
from trimtab_program import Program

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

# As Qwen2.5's own, cut to what matters: tools in the system message, calls in <tool_call>.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools

Return a json object within <tool_call></tool_call> tags:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NAMES = {
    "type": "object", "required": ["name"], "additionalProperties": False,
    "properties": {"name": {"$ref": "#/$defs/Name"}}, "$defs": {"Name": {"enum": ["Bob", "Ann"]}},
}  # fmt: skip
SUM = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
TOOLS = [
    {"type": "function", "function": {"name": "greet", "description": "Greets.", "parameters": NAMES}},
    {"type": "function", "function": {"name": "add", "parameters": SUM}},
]
# Too long for the bounds below.
LONG = {"type": "function", "function": {"name": "greet", "parameters": {
    "type": "object", "required": ["name"], "properties": {"name": {"enum": ["one two three four " * 9]}},
}}}  # fmt: skip
ASK = {"max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": "Tell me of the sea."}]}
NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """One model twice: as it is, whose template knows no tools, and with one that does."""
    program = Program(tmp_path_factory.mktemp("up"))
    checkpoint = "checkpoint: smollm2-135m, context: 2048"
    (program.root / "stack.yaml").write_text(f"""\
models:
  plain: {{{checkpoint}}}
  tools: {{{checkpoint}, engine_args: {{chat_template: {json.dumps(TEMPLATE)}}}}}
""")
    yield program.run_json("up", "stack.yaml", "-d", "--port", "0")["endpoint"]
    program.close()


@pytest.fixture
def sdk(url):
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def check_call(call, *, names):
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    if call.function.name == "add":
        assert arguments["a"] in (1, 2)
    else:
        assert arguments["name"] in ("Bob", "Ann")
    assert call.id


@pytest.mark.parametrize("model", ["plain", "tools"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [pytest.param("required", {"greet", "add"}, id="any"), pytest.param(NAMED, {"add"}, id="named")],
)
def test_a_tool_that_must_be_called_is_called(sdk, model, choice, names):
    """An agent gets its call, with arguments of the right shape, whatever the model would say."""
    answer = sdk.chat.completions.create(**ASK, model=model, tools=TOOLS, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    check_call(call, names=names)
    assert not answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens > 0

    with sdk.chat.completions.stream(
        **ASK, model=model, tools=TOOLS, tool_choice=choice, stream_options={"include_usage": True}
    ) as stream:
        streamed = stream.get_final_completion()
    (call,) = streamed.choices[0].message.tool_calls
    check_call(call, names=names)
    assert not streamed.choices[0].message.content
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage.completion_tokens > 0


@pytest.mark.parametrize("model", ["plain", "tools"])
def test_the_same_by_anthropics_word(url, model):
    """``any`` and a tool by its name hold as well."""
    tools = [{"name": "add", "input_schema": SUM}]
    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="any", max_retries=0) as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            ask = {**ASK, "model": model, "tools": tools, "tool_choice": choice}
            ask.pop("temperature")
            message = client.messages.create(**ask, extra_body={"temperature": 0})
            with client.messages.stream(**ask, extra_body={"temperature": 0}) as stream:
                streamed = stream.get_final_message()
            for one in (message, streamed):
                assert one.stop_reason == "tool_use"
                (block,) = [block for block in one.content if block.type == "tool_use"]
                assert (block.name, block.input["a"] in (1, 2)) == ("add", True)


def test_without_a_demand_the_model_says_what_it_wants(sdk):
    """Nothing is forced that nobody asked for."""
    free = sdk.chat.completions.create(**ASK, model="plain", tools=TOOLS, tool_choice="auto")
    assert free.choices[0].message.content


def test_what_was_cut_short_is_a_call_as_far_as_it_came(sdk):
    """Nobody sees half a JSON text as an answer, streamed or not."""
    for max_tokens, names in ((3, []), (20, ["greet"])):
        ask = {**ASK, "max_tokens": max_tokens, "model": "plain", "tools": [LONG], "tool_choice": "required"}
        (cut,) = sdk.chat.completions.create(**ask).choices
        assert (cut.finish_reason, cut.message.content) == ("length", None)
        assert [call.function.name for call in cut.message.tool_calls or []] == names

        pieces = [
            chunk.choices[0] for chunk in sdk.chat.completions.create(**ask, stream=True) if chunk.choices
        ]
        calls = [call for piece in pieces for call in piece.delta.tool_calls or []]
        assert [call.function.name for call in calls] == names
        assert not any(piece.delta.content for piece in pieces)
        assert pieces[-1].finish_reason == "length"
        told = [call.function.arguments for call in calls]
        assert told == [call.function.arguments for call in cut.message.tool_calls or []]


WORD = {"type": "string", "maxLength": 4}


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"properties": {"a": {"$ref": "#/properties/b"}, "b": WORD, "c": True}}, id="sibling"),
        pytest.param(
            {"$defs": {"x/y z": WORD}, "properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}}, id="escaped"
        ),
        pytest.param({"properties": {"a": WORD, "tree": {"$ref": "#"}}}, id="itself"),
        pytest.param(
            {"$ref": "#/$defs/N", "$defs": {"N": {
                "type": "object", "required": ["a"], "properties": {"a": WORD, "n": {"$ref": "#/$defs/N"}},
            }}},
            id="nothing-but-a-reference",
        ),
        pytest.param(
            {"properties": {"a": {"$defs": {"Q": WORD}, "$ref": "#/properties/a/$defs/Q"}}}, id="nested"
        ),
    ],
)  # fmt: skip
def test_references_of_a_tool_hold(sdk, parameters):
    """Of whatever form: the engine knows only some, and those of the whole schema."""
    parameters = parameters if "$ref" in parameters else {"type": "object", "required": ["a"]} | parameters
    add = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    answer = sdk.chat.completions.create(**ASK, model="plain", tools=[add, TOOLS[0]], tool_choice=NAMED)
    (call,) = answer.choices[0].message.tool_calls
    if answer.choices[0].finish_reason != "length":
        word = json.loads(call.function.arguments)["a"]
        assert isinstance(word, str)
        assert len(word) <= 4
    else:
        assert call.function.arguments.lstrip().startswith("{")


def test_usual_spellings_are_forced_as_well(sdk):
    """The default shape said aloud, a tool without arguments, and OpenAI's allowed tools."""
    nothing = {"type": "function", "function": {"name": "now", "parameters": None}}
    named = {"type": "function", "function": {"name": "now"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    answer = sdk.chat.completions.create(
        **ASK, model="plain", tools=[TOOLS[0], nothing], tool_choice=choice, response_format={"type": "text"}
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})
