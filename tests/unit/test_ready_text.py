"""What people read once a stack answers: lines to paste that suit the model they name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_plans import plan_of, settings_of, vllm_plan

from trimtab.cli.listeners import ready_text
from trimtab.core.plan import ModelPlan

URL = "http://127.0.0.1:8000"
CHAT = vllm_plan("chat", "org/chat", {})
EMBEDDING = vllm_plan("embedding", "org/embedding", {"runner": "pooling"})
GGUF_EMBEDDING = replace(
    vllm_plan("gguf", "gguf", {}), engine="llama_cpp", settings=settings_of({"embeddings": True})
)


RANKING = vllm_plan("ranking", "org/ranking", {"runner": "pooling", "convert": "classify"})
GGUF_RANKING = replace(GGUF_EMBEDDING, settings=settings_of({"embeddings": True, "pooling": "rank"}))


def snippets(*models: ModelPlan, key: str | None = None) -> tuple[str, str]:
    """The curl line and the SDK program."""
    text = ready_text(plan_of("1xh200", *models), URL, key=key)
    curl, program = text.split("or with the openai SDK (pip install openai):")
    compile(program, "program", "exec")
    return curl, program


@pytest.mark.parametrize("model", [EMBEDDING, GGUF_EMBEDDING], ids=lambda model: model.name)
def test_a_model_that_embeds_is_not_asked_to_chat(model):
    """The pooling runner of vLLM and the switch of llama.cpp alike: a chat would be refused."""
    curl, program = snippets(model)
    assert f"{URL}/v1/embeddings" in curl
    assert "client.embeddings.create" in program
    assert "chat" not in curl + program


@pytest.mark.parametrize("model", [RANKING, GGUF_RANKING], ids=lambda model: model.name)
def test_a_model_that_ranks_is_asked_to_rank(model):
    """It would refuse a chat, and embeds nothing that anybody wants."""
    curl, program = snippets(model)
    assert f"{URL}/v1/rerank" in curl
    assert 'client.post("/rerank"' in program


def test_beside_one_that_chats_the_lines_chat():
    """The first model of the file embeds; the lines name the one that can say hello."""
    curl, program = snippets(EMBEDDING, CHAT, key="sk-1")
    assert f"{URL}/v1/chat/completions" in curl
    assert ('"model": "chat"' in curl, 'model="chat"' in program) == (True, True)
    assert "-H 'Authorization: Bearer sk-1'" in curl
