"""I/O. ``trimtab bench ENDPOINT``: one load, several, or the search for the largest that still holds."""

from __future__ import annotations

from typing import Any

import click

from trimtab.cli.options import json_option

__all__ = ["run"]


@click.command(
    epilog="""\b
Examples:
  trimtab bench http://127.0.0.1:8080 --concurrency 8 --requests 80
  trimtab bench http://127.0.0.1:8080 --concurrency 1,2,4,8 --input-tokens 1024 --output-tokens 256
  trimtab bench http://127.0.0.1:8080 --rate 4 --duration 60 --slo ttft=500 --slo tpot=50
  trimtab bench http://127.0.0.1:8080 --find-max concurrency --slo ttft=2000
  trimtab bench http://127.0.0.1:8080 --prompts mine.jsonl --json
"""
)
@click.argument("endpoint", required=False, metavar="[ENDPOINT|STACK.yaml]")
@click.option(
    "--model", "models", multiple=True, metavar="NAME[=SHARE]", help="What to ask for; several are mixed."
)
@click.option(
    "--concurrency", metavar="N[,N…]", help="Users of a closed loop; a list runs one after the other."
)
@click.option(
    "--rate", metavar="R[,R…]", help="Requests per second of an open loop; a list runs them in turn."
)
@click.option("--arrivals", type=click.Choice(("poisson", "constant")), default="poisson", show_default=True)
@click.option("--requests", "num_requests", type=click.IntRange(1, 10_000_000), help="Default: 10 per user.")
@click.option(
    "--duration", type=click.FloatRange(min=0.1), help="Seconds of sending, at most.  [default: 600]"
)
@click.option("--find-max", type=click.Choice(("concurrency", "rate")), help="Search for the largest load.")
@click.option("--max-load", type=click.FloatRange(min=0.01), default=1024, show_default=True)
@click.option(
    "--slo", "slos", multiple=True, metavar="NAME=MS", help="ttft, ttfo, tpot or e2el, per request."
)
@click.option("--slo-share", type=click.FloatRange(0.01, 1.0), default=0.95, show_default=True)
@click.option("--input-tokens", default="512", show_default=True, metavar="N or A-B")
@click.option("--output-tokens", default="128", show_default=True, metavar="N or A-B")
@click.option("--prefix-tokens", type=click.IntRange(0), default=0, help="Shared beginning of the prompts.")
@click.option("--num-prefixes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--turns", type=click.IntRange(1, 1000), default=1, show_default=True, help="Per conversation.")
@click.option("--prompts", metavar="FILE.jsonl", help="Your own: messages or prompt per line.")
@click.option("--trace", metavar="FILE.jsonl", help="timestamp (ms), input_length, output_length per line.")
@click.option(
    "--warmup", type=click.IntRange(0), help="Requests before counting.  [default: one per user, 8 at most]"
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=600, show_default=True, help="Per request."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--api-key", envvar="OPENAI_API_KEY", default="", help="Default: OPENAI_API_KEY.")
@click.option("--body", metavar="JSON", default="{}", help="More fields for every request.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Ask for the full length (vLLM, llama.cpp).")
@click.option("--details", is_flag=True, help="Keep every request's times in the result.")
@click.option("--out", metavar="FILE", help="Save the result, with --details.")
@click.option(
    "--predict", metavar="CONFIG", help="A config.json or its folder: set the speed model beside it."
)
@click.option("--gpus", metavar="SPEC", help="With --predict: the cards, tensor parallel over all of them.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="With --predict.")
@click.option("--html", metavar="FILE", help="Write a page with plots as well (needs the report extra).")
@json_option
@click.pass_context
def run(ctx: click.Context, /, **values: Any) -> None:
    """Measure an OpenAI-compatible ENDPOINT (default: what trimtab runs); Ctrl-C still writes a result."""
    from trimtab.cli.bench_session import measure  # noqa: PLC0415 - keeps --help quick

    ctx.exit(measure(values))
