"""I/O. What an endpoint says about itself before and after a load: its models, its queue, its tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import aiohttp

from trimtab.bench.connection import Target
from trimtab.bench.corpus import Ruler
from trimtab.bench.driver import LoadPlan, run_load
from trimtab.bench.record import RequestRecord
from trimtab.bench.server_metrics import QueueTotals, decode_queue_totals
from trimtab.bench.workload import LengthRange, Workload
from trimtab.errors import EnvironmentMissingError, StackFileError

__all__ = ["check_models", "measure_ruler", "read_concurrency", "read_models", "read_queue_totals"]

_ASK_S = 10.0
_MOST_METRICS_BYTES = 16 * 1024**2
_MOST_HEALTH_BYTES = 1024**2
_PROBE_TOKENS = (16, 96)
_IS_UP = "is the server up at this address?"
_KEY_REFUSED = frozenset({"http_401", "http_403"})
_MOST_NAMED = 5


def _url(target: Target, path: str) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{'https' if target.is_tls else 'http'}://{host}:{target.port}{target.base_path}{path}"


async def read_models(target: Target, api_key: str) -> tuple[str, ...]:
    """Names under /v1/models; EnvironmentMissingError when the endpoint cannot be reached or asked."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = _url(target, "/v1/models")
    try:
        async with _session() as session, session.get(url, headers=headers) as answer:
            if answer.status != 200:
                raise EnvironmentMissingError(
                    f"{url} answers {answer.status}", hint="name the model with --model, or pass --api-key"
                )
            document = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        cause = getattr(error, "os_error", None)
        refused = isinstance(cause, ConnectionRefusedError)
        why = "connection refused" if refused else str(error) or type(error).__name__
        raise EnvironmentMissingError(f"{url} cannot be read: {why}", hint=_IS_UP) from None
    rows = document.get("data") if isinstance(document, dict) else None
    return tuple(
        row["id"]
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    )


async def read_queue_totals(target: Target) -> QueueTotals | None:
    """The engine's queue histogram; None where there is no Prometheus text, whatever is there instead."""
    body = await _read(_url(target, "/metrics"), _MOST_METRICS_BYTES)
    return None if body is None else decode_queue_totals(body.decode("utf-8", "replace"))


async def read_concurrency(target: Target, model: str) -> int | None:
    """Requests that a gateway of trimtab's has its engines work on at once; None where nothing tells."""
    body = await _read(_url(target, "/health"), _MOST_HEALTH_BYTES)
    try:
        found = json.loads(body or b"null")["models"][model]["concurrency"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and found > 0 else None


async def _read(url: str, most_bytes: int) -> bytes | None:
    """The body of a page as far as wanted; None where there is none."""
    try:
        async with _session() as session, session.get(url) as answer:
            return await answer.content.read(most_bytes) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S))


async def measure_ruler(plan: LoadPlan, models: Sequence[str], stop: asyncio.Event) -> Ruler | str:
    """Tokens per word as this server counts them, from two short prompts; else why that is not known."""
    points: list[tuple[int, int]] = []
    for tokens in _PROBE_TOKENS:
        record = await _ask_once(plan, models, tokens, stop)
        if record is None or record.error:
            return f"no answer to a short prompt ({'stopped' if record is None else record.error})"
        if record.count_source != "server":
            return "the server states no token counts for prompts"
        points.append((Ruler().words_for(tokens), record.input_tokens))
    made = Ruler.from_probes(points[0], points[1])
    return made or "the server counts no more tokens for a longer prompt"


async def check_models(plan: LoadPlan, models: Sequence[str], stop: asyncio.Event) -> None:
    """Ask each model for one token: what is refused now would be refused in every request of a load.

    EnvironmentMissingError where nothing listens or a key is wanted, StackFileError for a name that is not
    served.
    """
    url = _url(plan.target, plan.path)
    for name in models:
        record = await _ask_once(plan, (name,), _PROBE_TOKENS[0], stop)
        error = "" if record is None else record.error
        if record is not None and error == "connect":
            raise EnvironmentMissingError(f"{url} cannot be reached: {record.detail}", hint=_IS_UP)
        if error in _KEY_REFUSED:
            what = "refuses this key" if plan.api_key else "wants a key"
            raise EnvironmentMissingError(
                f"{url} {what} ({error.removeprefix('http_')})", hint="--api-key KEY, or OPENAI_API_KEY"
            )
        if error == "http_404":
            served = await read_models(plan.target, plan.api_key)
            if name in served:
                raise StackFileError(f"{url} is not there (404)", hint="is this an OpenAI-compatible server?")
            named = ", ".join(served[:_MOST_NAMED])
            raise StackFileError(
                f"{url} does not serve {name!r} (404)", hint=f"--model takes one of: {named}"
            )


async def _ask_once(
    plan: LoadPlan, models: Sequence[str], tokens: int, stop: asyncio.Event
) -> RequestRecord | None:
    """One short request beside those of the load; None when the user stopped it."""
    probe = LoadPlan(
        target=plan.target,
        path=plan.path,
        api_key=plan.api_key,
        workload=Workload(
            models=tuple((name, 1.0 / len(models)) for name in models),
            input_tokens=LengthRange(low=tokens, high=tokens),
            output_tokens=LengthRange(low=1, high=1),
        ),
        num_requests=1,
        timeout_s=plan.timeout_s,
        seed=plan.seed + 17,
        extra=plan.extra,
        first_index=900_000 + tokens,
    )
    run = await run_load(probe, stop)
    return run.records[0] if run.records else None
