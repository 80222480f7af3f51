"""Prompts as token ids: exact lengths, no two alike; tokens count by their ids where their text is empty."""

from __future__ import annotations

import json
import random

import pytest

from trimtab.bench.chunk import decode_chunk
from trimtab.bench.corpus import Corpus, Ruler
from trimtab.bench.workload import IdRange, LengthRange, Workload, render_body

CORPUS = Corpus(random.Random(1).random)


def bodies(ids: IdRange, *, count: int, tokens: int):
    workload = Workload(
        models=(("m", 1.0),),
        input_tokens=LengthRange(low=tokens, high=tokens),
        output_tokens=LengthRange(low=4, high=4),
        ids=ids,
    )
    draw = random.Random(7).random
    return [
        json.loads(render_body(workload.make(index, draw), CORPUS, Ruler(), b',"stream":true'))
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "ids", [IdRange(low=1000, end=100_000), IdRange(low=25, end=256), IdRange(low=0, end=1)]
)
def test_a_prompt_of_ids_is_as_long_as_asked_and_within_the_vocabulary(ids):
    """No tokenizer decides the length, and no id is one that the engine refuses."""
    for body in bodies(ids, count=3, tokens=777):
        assert len(body["prompt"]) == 777
        assert all(ids.low <= one < ids.end for one in body["prompt"])
        assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 4, True)


@pytest.mark.parametrize("ids", [IdRange(low=1000, end=100_000), IdRange(low=25, end=256)])
def test_no_two_prompts_share_a_block(ids):
    """A prefix cache must not make the second load faster than the first."""
    found = bodies(ids, count=200, tokens=16)

    assert len({tuple(body["prompt"]) for body in found}) == 200


@pytest.mark.parametrize(
    ("choice", "is_token"),
    [
        ({"text": "", "token_ids": [3464]}, True),
        ({"text": "a", "token_ids": None}, True),
        ({"text": "", "token_ids": None}, False),
        ({"text": "", "token_ids": []}, False),
        ({"text": ""}, False),
    ],
)
def test_an_id_is_a_token_and_an_empty_text_is_none(choice, is_token):
    """As vLLM 0.32 streams completions: with return_token_ids every token is seen, also half a character."""
    chunk = decode_chunk(json.dumps({"choices": [{"index": 0, **choice}]}).encode())

    assert chunk.has_answer is is_token
