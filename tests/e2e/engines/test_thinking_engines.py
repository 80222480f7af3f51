"""Thinking through the gateway on real engines: every switch, streamed and not, gives the same fields."""

from __future__ import annotations

import sys

import pytest
from asked_gateway import QUESTION, asked_gateway
from gguf_files import embedded_gguf
from vllm_cpu import ANSWER, THOUGHT

from trimtab.core.state import PORT_PLACEHOLDER, ReplicaSpec
from trimtab.runtimes.local_process import LocalProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

KWARGS = "chat_template_kwargs"
LATE_SYSTEM = [*QUESTION, {"role": "system", "content": "Be short."}]
SWITCHES = [
    ({}, True),
    ({KWARGS: {"enable_thinking": True}}, True),
    ({KWARGS: {"enable_thinking": False}}, False),
    ({"enable_thinking": True}, True),
    ({"enable_thinking": False}, False),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning_effort": "low"}, True),
    ({"thinking": {"type": "enabled", "budget_tokens": 50}}, True),
    ({"thinking": {"type": "disabled"}}, False),
    ({"model": "tiny:thinking"}, True),
    ({"model": "tiny:instant"}, False),
    ({"messages": [{"role": "user", "content": "What is the value? /no_think"}]}, False),
    ({"messages": [{"role": "user", "content": "What is the value?\n/think"}], "think": False}, True),
    ({"extra_body": {"enable_thinking": False}}, False),
]


@pytest.fixture
async def runtime(tmp_path):
    chosen = LocalProcessRuntime(tmp_path, python=sys.executable)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=5)


@pytest.mark.parametrize(
    ("engine", "parser"),
    [pytest.param("vllm", "qwen3", id="splits"), pytest.param("external", None, id="leaves-tags")],
)
async def test_vllm_gives_the_same_fields_for_every_switch(vllm, runtime, engine, parser):
    """Whether vLLM splits or leaves the closing tag, and however thinking is asked for: one result."""
    observed = await runtime.start_replica(vllm.spec("qwen3_5", reasoning_parser=parser))
    async with asked_gateway(observed, engine=engine, family="qwen3.5") as ask:
        for stream in (False, True):
            for fields, is_on in SWITCHES:
                thought, answer, document = await ask(stream=stream, **fields)
                assert (thought, answer) == (THOUGHT if is_on else "", ANSWER), (fields, stream)
                assert document["choices"][0]["finish_reason"] == "stop"

            thought, answer, document = await ask(stream=stream, thinking_budget=2)
            assert answer == ANSWER
            assert THOUGHT.startswith(thought)
            assert len(thought) < len(THOUGHT) / 2
            # No answer is empty because its thought ate the limit.
            thought, answer, document = await ask(stream=stream, max_tokens=6)
            assert answer
            assert ANSWER.startswith(answer)
            assert document["choices"][0]["finish_reason"] == "length"
            assert (await ask(stream=stream, messages=LATE_SYSTEM, enable_thinking=False))[1] == ANSWER


# Written as Qwen3.5's prints a conversation, for a model that knows nothing of thinking: what it says in
# its "thought" is of no use, but where the thought ends is our work.
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}
"""
BUDGET = 5


def llama_cpp(reasoning_format):
    argv = (
        sys.executable, "-m", "trimtab.runtimes.llama_cpp_host", "--alias", "m", "--model",
        str(embedded_gguf()), "--port", PORT_PLACEHOLDER, "--ctx-size", "2048", "--parallel", "1",
        "--threads", "2", "--chat-template", TEMPLATE, "--reasoning-format", reasoning_format,
    )  # fmt: skip
    return ReplicaSpec(
        replica_id=f"m-{reasoning_format}", stack="tests", model="m", engine="llama_cpp", argv=argv, env=(),
        config_hash=reasoning_format, trimtab_version="0", max_model_len=2048,
    )  # fmt: skip


async def test_llama_cpp_gives_the_same_fields_for_every_switch(runtime):
    """Whether llama.cpp splits or leaves the tag: the same two texts, and a bound leaves an answer."""
    results = []
    for reasoning_format in ("auto", "none"):
        observed = await runtime.start_replica(llama_cpp(reasoning_format))
        async with asked_gateway(observed, engine="llama_cpp", family="qwen3.5") as ask:
            results.append([])
            for fields, is_on in SWITCHES:
                # An effort of its own would let a model that cannot think go on to the end.
                bound = {} if "thinking" in fields or "reasoning_effort" in fields else {
                    "thinking_budget": BUDGET
                }  # fmt: skip
                one = [
                    (await ask(stream=stream, max_tokens=16, **fields, **bound))[:2]
                    for stream in (False, True)
                ]
                assert one[0] == one[1], fields
                thought, answer = one[0]
                assert bool(thought) == is_on, fields
                assert answer, fields
                assert "think>" not in thought + answer
                results[-1].append(one[0])
        await runtime.stop_replica(observed.replica_id, grace_s=5)
    assert results[0] == results[1]
