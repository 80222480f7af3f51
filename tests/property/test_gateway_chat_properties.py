"""Whatever a client puts into a chat's fields, it is understood or refused with a 400."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel, ServedReplica
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import CHAT
from trimtab.gateway.exchange_task import make_task, read_chat_settings
from trimtab.gateway.http_message import Request
from trimtab.gateway.pass_through import find_pass_through
from trimtab.gateway.replicas import ReplicaLoads, find_chat_id
from trimtab.gateway.request import decode_request, find_tools_fault
from trimtab.gateway.routing import choose_mode
from trimtab.gateway.thinking import SWITCH_FIELDS
from trimtab.gateway.thinking_request import prepare_chat
from trimtab.gateway.token_limit import check_max_tokens, check_windows, needs_prompt_count

_NAMES = [
    *SWITCH_FIELDS,
    *("type", "budget_tokens", "role", "content", "text", "function", "name", "parameters", "reasoning"),
]
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.sampled_from(["user", "system", "assistant", "enabled", "high", "/no_think", "</think>", "text"])
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=10,
)
_MESSAGE = st.fixed_dictionaries({}, optional={"role": _JSON, "content": _JSON, "reasoning_content": _JSON})
_FIELDS = dict.fromkeys(
    [
        *SWITCH_FIELDS,
        *("chat_template_kwargs", "extra_body", "metadata", "user", "tools", "stop", "n", "stream"),
        *("stream_options", "max_tokens", "max_completion_tokens", "include_reasoning", "temperature"),
        *("dry_penalty_last_n", "model"),
    ],
    _JSON,
)
_BODIES = st.fixed_dictionaries(
    {}, optional=_FIELDS | {"messages": _JSON | st.lists(_JSON | _MESSAGE, max_size=3)}
)
_FAMILIES = st.sampled_from(["plain", "qwen3", "qwen3.5"])
_ENGINES = st.sampled_from(["vllm", "llama_cpp", "external"])

_REPLICAS = tuple(
    ServedReplica(replica_id=f"m/{i}", state=ReplicaState.READY, base_url=f"http://127.0.0.1:{i}")
    for i in (1, 2)
)


@given(_BODIES, _FAMILIES, _ENGINES)
@example({"thinking": {"type": []}}, "qwen3", "vllm")
@example({"thinking": {"type": {}}}, "qwen3.5", "external")
@example({"user": "\ud800"}, "plain", "vllm")
@example({"messages": [{"role": []}, {"role": {}}]}, "qwen3.5", "vllm")
def test_any_field_is_understood_or_refused(body, family, engine):
    """A client's odd value is its own mistake, and told as one."""
    model = ServedModel(
        name="m",
        engine=engine,
        state=ReplicaState.READY,
        base_url="http://127.0.0.1:1",
        upstream_model="theirs",
        max_model_len=100,
        family=family,
        replicas=_REPLICAS,
    )
    settings = GatewaySettings()
    request = Request(method="POST", path=CHAT, body_parts=[json.dumps(body).encode()])
    try:
        facts = decode_request(request.body)
        find_tools_fault(facts.document)
        chat_id = find_chat_id({}, facts.document)
        ReplicaLoads().choose(model, chat_id=chat_id, now_s=0)
        find_pass_through(request, facts, model, settings)
        check_max_tokens(facts, limit=100)
        check_windows(facts, limit=100)
        needs_prompt_count(facts, body_bytes=10, limit=100)
        _, mode = choose_mode(facts.model, (model,))
        chat = prepare_chat(facts.document, read_chat_settings(request, model, mode, settings))
        task = make_task(facts, model, chat, endpoint=CHAT).finish(request.body, capped=5)
        json.loads(task.body)
        "".join(chat.headers().values()).encode("ascii")
    except GatewayError as error:
        assert error.status == 400
