"""Answers of engines as users reported them, and the two texts that a client must get.

Each names the reports it comes from (public issue threads of the projects named); the texts are
shortened or made up, the shape of the stream is the reported one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One answer: deltas as the engine sends them, and what is right. ``family`` and ``is_on`` as sent."""

    name: str
    deltas: tuple[dict[str, Any], ...]
    finish: str
    thought: str
    answer: str
    family: str = "qwen3.5"
    is_on: bool = True
    source: str = ""

    def stream(self) -> bytes:
        """The engine's events, role first, usage and [DONE] last."""
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}

        def event(delta, finish=None):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            text = json.dumps(head | {"choices": [choice]}, ensure_ascii=False)
            return f"data: {text}\n\n".encode()

        usage = {"prompt_tokens": 3, "completion_tokens": len(self.deltas), "total_tokens": 3}
        last = f"data: {json.dumps(head | {'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
        events = [event({"role": "assistant", "content": ""}), *map(event, self.deltas)]
        return b"".join([*events, event({}, self.finish), last.encode()])

    def whole(self) -> dict[str, Any]:
        """The same answer unstreamed."""
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls: list[dict[str, Any]] = []
        for delta in self.deltas:
            for name, value in delta.items():
                if name == "tool_calls":
                    calls += [{key: part for key, part in call.items() if key != "index"} for call in value]
                elif value is not None:
                    message[name] = (message.get(name) or "") + value
        if calls:
            message["tool_calls"] = calls
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }  # fmt: skip


def content(*texts):
    return tuple({"content": text} for text in texts)


def reasoning(*texts, field="reasoning"):
    return tuple({field: text} for text in texts)


CALL = {"tool_calls": [{"index": 0, "id": "t1", "type": "function",
                        "function": {"name": "get_weather", "arguments": "{}"}}]}  # fmt: skip

CASES = (
    Case("answer-in-reasoning", reasoning("The answer", " is 4"), "stop", "", "The answer is 4",
         family="qwen3", is_on=False, source="QwenLM/Qwen3#1297, vllm#17349, vllm#17609"),
    Case("answer-in-reasoning-deltas", reasoning("1", "2"), "stop", "", "12", is_on=False,
         source="vllm#40816"),
    Case("answer-in-reasoning-cut", reasoning("1", "2"), "length", "", "12", is_on=False,
         source="vllm#40816"),
    Case("thought-without-answer", reasoning("So ", "four."), "stop", "So four.", "So four.",
         source="QwenLM/Qwen3#1297: a finished answer is never empty"),
    Case("cut-in-thought", content("The user ", "is asking"), "length", "The user is asking", "",
         source="vllm#35221, jundot/omlx#2457"),
    Case("cut-in-thought-split", reasoning("The user ", "is asking"), "length", "The user is asking", "",
         source="vllm#35221"),
    Case("cut-in-tag", content("The user is", "</thi"), "length", "The user is</thi", "",
         source="vllm#35221"),
    Case("glm-own-tags", content("\n", "<thi", "nk>Hmm", "</think>", "\nHi"), "stop", "Hmm", "\nHi",
         family="glm-4.5", source="chat template of GLM-4.5-Air: no tag in the prompt"),
    Case("deepseek-lone-closer", content("Let me see", "</think>", "Hi"), "stop", "Let me see", "Hi",
         family="deepseek-v3.1", source="chat template of DeepSeek-V3.1: <think> ends the prompt"),
    Case("deepseek-off", content("Hi"), "stop", "", "Hi", family="deepseek-v3.1", is_on=False,
         source="chat template of DeepSeek-V3.1: </think> ends the prompt"),
    Case("static-opener", content("Let me", " see ...", " </think>", "\n\nHi"), "stop", "Let me see ... ",
         "Hi", source="open-webui#11259"),
    Case("static-opener-one-delta", content("Let me see ... </think>\n\nHi"), "stop", "Let me see ... ",
         "Hi", source="open-webui#11259"),
    Case("both-tags", content("<think>\n", "Hmm", "\n</think>\n\n", "Hi"), "stop", "Hmm\n", "Hi",
         family="qwen3", source="open-webui#11259"),
    Case("repeated-opener", content("<think>\nHmm</think>Hi"), "stop", "Hmm", "Hi",
         source="a template with a static opener and a model that writes it again"),
    Case("field-renamed", reasoning("Thinking"), "length", "Thinking", "",
         source="vllm-ascend#10940, dify-official-plugins#2740, LibreChat#12775"),
    Case("field-renamed-answered", (*reasoning("Thinking"), *content("Done")), "stop", "Thinking", "Done",
         source="LibreChat#12775"),
    Case("field-old-name", (*reasoning("Thinking", field="reasoning_content"), *content("Done")), "stop",
         "Thinking", "Done", source="vllm-ascend#10940"),
    Case("closer-cut", content("<think>secret</thi", "nk>ANSWER"), "stop", "secret", "ANSWER",
         family="qwen3", source="OmniRoute#10441, sglang#31009"),
    Case("opener-cut", content("<th", "ink>a", "</think>b"), "stop", "a", "b", family="qwen3",
         source="memory-vault#152"),
    Case("opener-cut-no-end", content("<th", "ink>a"), "length", "a", "", family="qwen3",
         source="memory-vault#152"),
    Case("less-than", content("a < b", "c"), "stop", "", "a < bc", family="qwen3", is_on=False,
         source="sglang#31009"),
    Case("less-than-at-end", content("a <", " b <th"), "stop", "", "a < b <th", is_on=False,
         source="sglang#31009"),
    Case("call-in-thought", content("I need weather ", "<tool_call>\n<function=get_weather>\n</function>"
         "\n</tool_call>"), "stop", "I need weather ",
         "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>",
         source="QwenLM/Qwen3#1459, vllm#42021"),
    Case("call-after-thought-parsed", (*reasoning("I need weather"), CALL), "tool_calls",
         "I need weather", "", source="vllm#42021"),
    Case("call-parsed-out-of-text", (*content("I need weather </thi"), CALL), "tool_calls",
         "I need weather ", "", source="vllm#42021"),
    Case("no-tail-behind-call", (*reasoning("Weather"), CALL, *content("</thi")), "tool_calls",
         "Weather", "", source="QwenLM/Qwen3#1459"),
    Case("quoted-call", content("I could write `<tool_call>` here.</think>Hi"), "stop",
         "I could write `<tool_call>` here.", "Hi", source="vllm#42021: a quoted example is no call"),
    Case("blocks-around-calls", content("<think>a</think>\n<tool_call>1</tool_call>", "<think>b</think>",
         "\nc"), "stop", "ab", "<tool_call>1</tool_call>c", family="qwen3", source="vllm#42021"),
    Case("empty-thought", content("<think>\n\n</think>\n\n", "Hi"), "stop", "", "Hi", family="qwen3",
         is_on=False, source="Qwen3 prints an empty block after /no_think"),
    Case("closer-only", content("</think>", "\n\nHi"), "stop", "", "Hi", source="open-webui#11259"),
    Case("second-closer", content("a</think>b", "</think>c"), "stop", "a", "bc",
         source="vllm's own parser swallows it"),
    Case("line-end-between-tags", content("<</think>\n", "<think>b</think>c"), "stop", "<b", "c",
         source="a tag at a line's start whose line end went with the tag before"),
    Case("tag-in-code", content("a</think>Write `<think>` or\n```\n<think>\n</think>\n```\nok"), "stop", "a",
         "Write `<think>` or\n```\n<think>\n</think>\n```\nok", source="an answer about tags"),
    Case("multi-byte", content("ä€", "😀 </think>", "\n\n答え", "😀"), "stop", "ä€😀 ", "答え😀",
         source="open-webui#11259 in other letters"),
    Case("engine-strips-nothing", (*reasoning("Plan."), *content("\n\nThe", " value")), "stop", "Plan.",
         "\n\nThe value", source="vllm 0.32 leaves the line ends"),
    Case("closer-in-field", reasoning("Plan.</think>", "\n\nHi", " there"), "stop", "Plan.", "Hi there",
         source="vllm#17609: the answer behind the tag, in the thought's field"),
    Case("long-answer", (*reasoning(*["think "] * 5), *content(*["word "] * 5)), "stop", "think " * 5,
         "word " * 5, source="nothing odd"),
)  # fmt: skip
