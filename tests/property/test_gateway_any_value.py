"""Whatever JSON value stands anywhere in a request, it is translated or refused by name, never our fault."""

import json
from copy import deepcopy

import pytest

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.protocols import open_passage, read_asked
from trimtab.gateway.repair import ALL_REPAIRS
from trimtab.gateway.request import decode_request
from trimtab.gateway.thinking_families import find_thinking_family
from trimtab.gateway.thinking_request import ChatSettings, prepare_chat

VALUES = [None, True, 0, -1, 2.5, "", "x", [], {}, [[]], [{}], {"type": []}, {"type": "text"}, [None]]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MESSAGES = {
    "model": "m", "max_tokens": 9, "stream": True, "system": [{"type": "text", "text": "s"}],
    "stop_sequences": ["x"], "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "tools": [{"name": "f", "type": "custom", "description": "d", "strict": True, "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "chat_template_kwargs": {"enable_thinking": True}, "extra_body": {"min_p": 0.1},
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "t"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            {"type": "document", "source": {"type": "text", "data": "t"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "h"}, {"type": "text", "text": "t"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "b"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "t"}]}]},
    ],
}  # fmt: skip
RESPONSES = {
    "model": "m", "max_output_tokens": 9, "instructions": "i", "include": ["x"], "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": "auto"}, "stream": True, "temperature": 1, "user": "u",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"}, "extra_body": {"min_p": 0.1}, "store": False,
    "input": [
        {"role": "user", "content": [
            {"type": "input_text", "text": "t"},
            {"type": "input_image", "image_url": "data:", "detail": "low"}]},
        {"type": "reasoning", "summary": [{"text": "s"}], "content": [{"text": "h"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "t"}]},
    ],
}  # fmt: skip
CHAT = {
    "model": "m", "max_tokens": 9, "max_completion_tokens": 9, "stream": True, "stop": ["x"], "n": 1,
    "stream_options": {"include_usage": True}, "reasoning_effort": "low", "thinking_budget": 5, "think": True,
    "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 5}, "include_reasoning": True,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "temperature": 1,
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "extra_body": {"min_p": 0.1},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t /think"}]},
        {"role": "assistant", "content": "<think>h</think>t", "reasoning_content": "h", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "t"},
    ],
}  # fmt: skip
TOKENS = {"model": "m", "prompt": "p", "add_special_tokens": True, "return_token_strs": False}
PIECES = {"model": "m", "content": "p", "add_special": True, "with_pieces": False, "parse_special": True}


def places(value, path=()):
    """The path to every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def changed(document, path, value):
    copy = deepcopy(document)
    *way, last = path
    holder = copy
    for key in way:
        holder = holder[key]
    holder[last] = value
    return json.dumps(copy).encode()


def go_in(path, body, engine, family):
    model = ServedModel(
        name="m", engine=engine, state=ReplicaState.READY, base_url="http://x", max_model_len=4096,
        family=family,
    )  # fmt: skip
    if path != "/v1/chat/completions":
        body = open_passage(path, body, read_asked(path, body, ALL_REPAIRS), (model,))[0].body
    facts = decode_request(body)
    settings = ChatSettings(
        family=find_thinking_family(family), engine=engine, repairs=frozenset(ALL_REPAIRS)
    )
    if "messages" in facts.document:
        json.dumps(prepare_chat(facts.document, settings).document)


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp", "external"])
@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/messages", MESSAGES), ("/v1/messages/count_tokens", MESSAGES), ("/v1/responses", RESPONSES),
        ("/v1/chat/completions", CHAT), ("/tokenize", TOKENS), ("/tokenize", PIECES),
        ("/detokenize", {"tokens": [1]}),
    ],
)  # fmt: skip
def test_every_value_anywhere_is_translated_or_refused(path, document, engine):
    """One place of a legal request after the other gets every kind of value."""
    go_in(path, json.dumps(document).encode(), engine, "qwen3.5") if "extra_body" in document else None
    for place in places(document):
        for value in VALUES:
            try:
                go_in(path, changed(document, place, value), engine, "qwen3.5")
            except GatewayError as error:
                assert 400 <= error.status < 500 or error.status == 501, (place, value)
