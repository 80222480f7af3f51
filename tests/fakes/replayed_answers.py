"""Scripts for the stand-in engine that replay an answer which the request itself carries.

``replay``: the bytes in the field ``answer_b64``, in pieces that end at ``cuts`` (every byte with
"all"), as a stream or as one body. A request that continues a closed thought (``continue_final_message``)
or comes without thinking gets ``then_b64``; ``refuses`` lists what the engine answers 400 to. The answer
named in ``endless``, "first" or "second", never ends.
"""

from __future__ import annotations

import asyncio
import base64
import json

from scripted_engine import SCRIPTS, STREAM_HEAD, Run, chunked, plain


def replayed(answer: bytes, *, then: bytes = b"", cuts=(), refuses=(), endless=None, **fields):
    """The fields of a request that is answered so."""
    return {
        "script": "replay",
        "answer_b64": base64.b64encode(answer).decode(),
        "then_b64": base64.b64encode(then).decode(),
        "cuts": cuts,
        "refuses": list(refuses),
        "endless": endless,
        **fields,
    }


async def replay(run: Run) -> bool:
    document = run.document
    for field in document["refuses"]:
        if document.get(field) is not None:
            error = {"message": f"{field} is set but the engine cannot", "type": "BadRequestError"}
            body = json.dumps({"error": error}).encode()
            await run.send(plain(body, status="400 Bad Request"))
            return True
    is_second = document.get("continue_final_message") or (
        document["then_b64"] and document.get("chat_template_kwargs", {}).get("enable_thinking") is False
    )
    data = base64.b64decode(document["then_b64" if is_second else "answer_b64"])
    if not document.get("stream"):
        await run.send(plain(data))
        return True
    cuts = range(1, len(data)) if document["cuts"] == "all" else document["cuts"]
    await run.send(STREAM_HEAD)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await run.send(chunked(data[start:end]))
        await asyncio.sleep(0)
    if document["endless"] == ("second" if is_second else "first"):
        await asyncio.sleep(60)
    await run.send(b"0\r\n\r\n")
    return True


async def broken_tools(run: Run) -> bool:
    """llama.cpp's answer to tools that it cannot read."""
    body = b'{"error":{"code":500,"message":"type must be object","type":"server_error"}}'
    await run.send(plain(body, status="500 Internal Server Error"))
    return True


SCRIPTS |= {"replay": replay, "broken_tools": broken_tools}
