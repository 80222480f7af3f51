"""Runs trimtab's gateway alone in front of one ready-made engine, as the side-by-side run needs it.

python benchmarks/gateway/serve_gateway.py --upstream http://127.0.0.1:18001 --port 18010
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from trimtab import __version__
from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.app import Gateway
from trimtab.gateway.key_ring import KeyRing
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.request_log import RequestLog
from trimtab.gateway.usage_log import UsageLog


async def _main(args: argparse.Namespace) -> None:
    model = ServedModel(
        name=args.model, engine=args.engine, state=ReplicaState.READY, base_url=args.upstream,
        max_model_len=args.max_model_len, family=args.family)  # fmt: skip
    served = (model, replace(model, name="held", base_url=args.held)) if args.held else (model,)
    more = GatewayMore()
    if args.more is not None:
        more = GatewayMore(
            keys=KeyRing(args.more / "keys.json"),
            usage=UsageLog(args.more / "usage.sqlite3"),
            request_log=RequestLog(args.more / "requests.log"),
        )
        served = tuple(replace(one, concurrency=64) for one in served)
    gateway = Gateway(GatewaySettings(port=args.port), lambda: served, version=__version__, more=more)
    await gateway.start()
    print(f"ready {gateway.port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--engine", default="vllm", help="llama_cpp: unstreamed answers are put together")
    parser.add_argument("--family", default="plain", help="qwen3.5: thinking is normalised")
    parser.add_argument("--held", help="a second engine, served as the model named held")
    parser.add_argument(
        "--more", type=Path, help="a folder: admission, its keys.json, usage, a log of requests"
    )
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    args = parser.parse_args()
    if args.loop == "uvloop":
        import uvloop

        uvloop.run(_main(args))
    else:
        asyncio.run(_main(args))
