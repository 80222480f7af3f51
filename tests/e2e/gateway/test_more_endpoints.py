"""Embeddings, reranking, scores and tokens: through to engines that have them, a word to use where not."""

import json

import pytest

from trimtab.gateway.key_ring import KeyRing, add_key
from trimtab.gateway.keys import KeyLimits
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.usage_log import UsageLog, read_usage_totals

RERANKED = {
    "results": [{"index": 1, "relevance_score": 0.6}],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
PATHS = ["/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score"]


@pytest.mark.parametrize("path", PATHS)
async def test_what_the_engine_has_passes_as_it_is(front, path):
    """Its own path, its own bytes, both ways."""
    body = b'{"model": "m", "query": "q", "documents": ["a", "b"], "script": "told", "say": {"data": [1.50]}}'
    async with front.post(path, data=body) as answer:
        assert (answer.status, await answer.json()) == (200, {"data": [1.5]})
    (seen,) = front.engine.requests
    assert (seen.path, seen.body) == (path, body)
    counted = f'trimtab_requests_total{{endpoint="{path}",model="m",status="200"}}'
    assert await front.metric(counted) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_behind_another_name_is_asked_by_its_own(make_front, path):
    """The engine's name for the model is put in."""
    front = await make_front(upstream_model="theirs")
    async with front.post(path, model="m") as answer:
        assert answer.status == 200
    assert front.engine.requests[0].document["model"] == "theirs"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("/v1/embeddings", "engine_args: {embeddings: true}", id="embeddings"),
        pytest.param("/v1/rerank", "pooling: rank", id="rerank"),
        pytest.param("/score", "/rerank scores documents", id="score"),
    ],
)
async def test_llama_cpp_without_it_says_which_setting_has_it(make_front, path, words):
    """501 before the engine is bothered, with the words for the stack file."""
    front = await make_front(engine="llama_cpp")
    async with front.post(path, model="m") as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["origin"]) == (501, "not_supported", "gateway")
    assert words in error["message"]
    assert front.engine.requests == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("404 Not Found", {"detail": "Not Found"}),
        ("501 Not Implemented", {"error": {"code": 501, "message": "no"}}),
        ("400 Bad Request", {"error": {"message": "The model does not support Embeddings API"}}),
    ],
)
async def test_vllm_that_generates_says_which_setting_embeds(front, status, said):
    """However that version of vLLM words it."""
    async with front.post("/v1/embeddings", model="m", script="told", status=status, say=said) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (501, "not_supported")
    assert "runner: pooling" in error["message"]


async def test_other_faults_of_these_paths_stay_the_engines(front):
    """A bad input is no missing endpoint."""
    said = {"error": {"message": "input is too long"}}
    async with front.post("/v1/embeddings", script="told", status="400 Bad Request", say=said) as answer:
        assert (answer.status, (await answer.json())["error"]["origin"]) == (400, "engine")


async def test_vllms_words_for_tokens_work_on_llama_cpp(make_front):
    """The same request as for vLLM, the same fields in the answer."""
    front = await make_front(engine="llama_cpp")
    front.engine.prompt_tokens = 3
    async with front.post("/tokenize", data=b'{"model": "m", "prompt": "a b c"}') as answer:
        assert await answer.json() == {"count": 3, "max_model_len": 4096, "tokens": [1, 1, 1]}
    assert front.engine.requests[0].document == {
        "model": "m", "content": "a b c", "add_special": True, "parse_special": True,
    }  # fmt: skip


async def test_llama_cpps_words_for_tokens_work_on_vllm(front):
    """And the other way round."""
    front.engine.prompt_tokens = 2
    async with front.post("/tokenize", data=b'{"content": "a b", "add_special": true}') as answer:
        assert await answer.json() == {"tokens": [1, 1]}
    assert front.engine.requests[0].document == {"prompt": "a b", "add_special_tokens": True}


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp"])
@pytest.mark.parametrize("name", ["prompt", "content"])
async def test_text_of_tokens_comes_by_both_names(make_front, engine, name):
    """Clients of either engine find it."""
    front = await make_front(engine=engine)
    body = {"model": "m", "tokens": [1, 2], "script": "told", "say": {name: "hi"}}
    async with front.post("/detokenize", data=json.dumps(body).encode()) as answer:
        assert await answer.json() == {"prompt": "hi", "content": "hi"}


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("llama_cpp", {"messages": []}),
        ("llama_cpp", {"prompt": "a", "return_token_strs": True}),
        ("vllm", {"content": "a", "with_pieces": True}),
        ("vllm", {"content": "a", "parse_special": False}),
    ],
)
async def test_what_only_the_other_engine_can_is_said(make_front, engine, fields):
    """No answer that is nearly right."""
    front = await make_front(engine=engine)
    async with front.post("/tokenize", data=json.dumps(fields).encode()) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (501, "not_supported")
    assert front.engine.requests == []


async def test_tokens_are_counted_while_every_slot_is_taken(make_front):
    """Tokenizing takes no slot of the engine, so that it waits for none."""
    front = await make_front(concurrency=1)
    async with front.post(script="hang_inside_stream", stream=True) as busy:
        await busy.content.readany()
        async with front.post("/tokenize", data=b'{"prompt": "a"}') as answer:
            assert answer.status == 200


async def test_keys_and_usage_count_here_too(make_front, tmp_path):
    """A key is asked for, its limits hold, and its tokens are written down."""
    path = tmp_path / "keys.json"
    key = add_key(path, "alice", KeyLimits(requests_per_minute=1))
    usage = UsageLog(tmp_path / "usage.sqlite3")
    front = await make_front(more=GatewayMore(keys=KeyRing(path), usage=usage))
    asked = {"script": "told", "say": RERANKED, "model": "m"}
    async with front.post("/v1/rerank", **asked) as answer:
        assert answer.status == 401
    statuses = []
    for headers in ({"x-api-key": key}, {"Authorization": f"Bearer {key}"}):
        async with front.post("/v1/rerank", headers=headers, **asked) as answer:
            statuses.append(answer.status)
    usage.close()
    (total,) = read_usage_totals(tmp_path / "usage.sqlite3")
    assert statuses == [200, 429]
    assert (total.key, total.num_requests, total.num_errors, total.prompt_tokens) == ("alice", 2, 1, 4)
