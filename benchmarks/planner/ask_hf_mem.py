"""hf-mem's answer for a model folder: python ask_hf_mem.py FOLDER MAX_MODEL_LEN KV_DTYPE   (in hf-mem's environment)

hf-mem only reads from the hub. Its HTTP client is given a transport that serves the folder under the hub's
addresses: config.json, and a safetensors header (header.json) made of the tensors that the real checkpoint has.
"""

import json
import struct
import sys
from pathlib import Path

import hf_mem
import httpx2

FOLDER, LENGTH, DTYPE = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def answer(request: httpx2.Request) -> httpx2.Response:
    path = request.url.path
    if "/api/models/" in path:
        names = ("config.json", "model.safetensors")
        return httpx2.Response(200, json=[{"path": name, "type": "file"} for name in names])
    if path.endswith("/config.json"):
        return httpx2.Response(200, content=(FOLDER / "config.json").read_bytes())
    if path.endswith("/model.safetensors"):
        header = (FOLDER / "header.json").read_bytes()
        whole = struct.pack("<Q", len(header)) + header
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        return httpx2.Response(206, content=whole[int(first) : int(last) + 1])
    return httpx2.Response(404)


real_client = httpx2.AsyncClient


def client(**options: object) -> httpx2.AsyncClient:
    options.pop("http2", None)
    return real_client(transport=httpx2.MockTransport(answer), **options)


httpx2.AsyncClient = client
found = hf_mem.run(
    model_id="local/model", experimental=True, max_model_len=LENGTH, batch_size=1, kv_cache_dtype=DTYPE
)
print(json.dumps({"weights_bytes": found.memory, "request_kv_bytes": found.kv_cache}))
