"""Pure. The paths of the one endpoint, and what an engine must have been started with to answer some."""

from __future__ import annotations

from typing import Final

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.external_listing import EXTERNAL_ENGINE

__all__ = [
    "CHAT",
    "COUNT_CHAT",
    "COUNT_TOKENS",
    "DETOKENIZE",
    "DIRECT_PATHS",
    "EMBEDDINGS",
    "GENERATING_PATHS",
    "MESSAGES",
    "POST_PATHS",
    "READ_PATHS",
    "RESPONSES",
    "TOKENIZE",
    "TOKENIZING_PATHS",
    "check_engine_has",
    "explain_missing",
]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
# Counts the tokens of a chat's prompt; llama.cpp's own, which clients do not ask.
COUNT_CHAT: Final = "/v1/chat/completions/input_tokens"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
RESPONSES: Final = "/v1/responses"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
_RERANK: Final = frozenset({"/v1/rerank", "/rerank"})
_SCORE: Final = frozenset({"/v1/score", "/score"})

# What engines answer token by token.
GENERATING_PATHS: Final = frozenset({CHAT, COMPLETIONS})
# What passes without a translation, and without one of the answers below.
DIRECT_PATHS: Final = GENERATING_PATHS
# What takes none of an engine's slots, so that nothing waits for one.
TOKENIZING_PATHS: Final = frozenset({TOKENIZE, DETOKENIZE, COUNT_TOKENS, COUNT_CHAT})
POST_PATHS: Final = frozenset(
    {
        *GENERATING_PATHS,
        *_RERANK,
        *_SCORE,
        EMBEDDINGS,
        TOKENIZE,
        DETOKENIZE,
        MESSAGES,
        COUNT_TOKENS,
        RESPONSES,
    }
)
READ_PATHS: Final = frozenset({"/v1/models", "/health", "/metrics"})

_EMBED: Final = "embeddings"
_RANK: Final = "rerank"
_SCORES: Final = "score"
_KINDS: Final[dict[str, str]] = {
    EMBEDDINGS: _EMBED,
    **dict.fromkeys(_RERANK, _RANK),
    **dict.fromkeys(_SCORE, _SCORES),
}
# Engine and kind → what would answer it, in the words of a stack file.
_WHAT_HAS_IT: Final[dict[tuple[str, str], str]] = {
    ("llama_cpp", _EMBED): "engine_args: {embeddings: true}, with pooling: mean where the file names none",
    ("llama_cpp", _RANK): "engine_args: {embeddings: true, pooling: rank}, with a reranking model",
    ("vllm", _EMBED): "engine_args: {runner: pooling}, with an embedding model",
    ("vllm", _RANK): "engine_args: {runner: pooling}, with a reranking model",
    ("vllm", _SCORES): "engine_args: {runner: pooling}, with a reranking or embedding model",
}
_NAMES: Final = {"llama_cpp": "llama.cpp", "vllm": "vLLM", EXTERNAL_ENGINE: "its endpoint"}
_ABSENT: Final = frozenset({404, 405, 501})
# A 404 or 400 of an engine that has the path but not the model, and one of vLLM before 0.12 without it.
_OTHER_FAULT: Final = b"does not exist"
_UNSUPPORTED: Final = b"does not support"


def check_engine_has(path: str, model: ServedModel) -> None:
    """GatewayError (501) where the model's engine is known not to answer a path."""
    kind = _KINDS.get(path)
    if model.engine != "llama_cpp" or kind is None:
        return
    if kind == _SCORES or not model.has_embeddings:
        raise _not_there(path, model)


def explain_missing(path: str, model: ServedModel, *, status: int, body: bytes) -> GatewayError | None:
    """The refusal (501) that an engine's own answer stands for, None where it is another fault."""
    is_absent = status in _ABSENT and _OTHER_FAULT not in body
    if not is_absent and not (status == 400 and _UNSUPPORTED in body and path in _KINDS):
        return None
    return _not_there(path, model)


def _not_there(path: str, model: ServedModel) -> GatewayError:
    name = _NAMES.get(model.engine, model.engine)
    kind = _KINDS.get(path)
    wanted = _WHAT_HAS_IT.get((model.engine, kind or ""))
    if wanted is not None:
        hint = f"in the stack file, models.{model.name}: {wanted}"
    elif kind == _SCORES:
        hint = "/rerank scores documents against a query; vLLM has /score"
    else:
        hint = "ask a model whose engine has it"
    return GatewayError(
        f"the model {model.name!r} has no {path}: {name} was not started for it, or does not know it",
        status=501,
        code="not_supported",
        param="model",
        hint=hint,
    )
