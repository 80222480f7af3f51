"""docs/accuracy.md from the committed raw files, and the way to add a row of your own to it.

    python benchmarks/accuracy/record.py                   write the page (`make docs` does so too)
    python benchmarks/accuracy/record.py RESULT.json...    add results of `trimtab try --out`, then write it

A result is taken when it measured a card and names neither paths nor machines; it lies in tries/ then.
"""

import json
import re
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import (
    BEFORE,
    MEMORY_RAW,
    ROOT,
    SPEED_RAW,
    TRIES,
    add_calibrated_speed,
    read_memory_rows,
    read_speed_rows,
    read_try_rows,
)

PAGE = ROOT / "docs" / "accuracy.md"
GIB = 1 << 30
KV_BARS = (0.15, 0.3, 0.1)
TOKENS_BAR, TPOT_BAR, TTFT_BAR, SMALL_CARD_BAR = 0.01, 0.08, 0.15, 0.05
SMALL_CARD = "27b-int4-24g-32k"


def link(path: Path) -> str:
    return f"[{path.name}](../{path.relative_to(ROOT).as_posix()})"


def sizes(rows: list[dict], name: str) -> list[float]:
    """Misses of available KV memory in GiB, smallest first."""
    return sorted(abs(row[name] - row["kv_measured"]) / GIB for row in rows if row[name] is not None)


def within(values: list[float], share: float = 0.95) -> float:
    """So far off are ``share`` of the sorted values at most."""
    return values[min(len(values) - 1, -(-len(values) * share // 1).__int__() - 1)]


def shares(rows: list[dict], said: str, got: str) -> list[float]:
    """Relative misses, smallest first."""
    return sorted(abs(row[said] / row[got] - 1) for row in rows if row.get(said) and row.get(got))


def verdict(is_held: bool) -> str:
    return "holds" if is_held else "**does not hold**"


def bar_rows(memory: list[dict], speed: list[dict]) -> list[tuple[str, str, str]]:
    mended_on = [row for row in memory if not row["is_unseen"]]
    unseen = [row for row in memory if row["is_unseen"]]
    first, fitted = (sizes(mended_on, f"kv_{when}") for when in ("before", "now"))
    tried = [term for document in read_try_rows() for model in document["models"] for term in model["memory"]]
    before = sorted(
        sizes(unseen, "kv_before")
        + [
            abs(term["predicted"] - term["measured"]) / GIB
            for term in tried
            if term["name"] == "available KV cache"
        ]
    )
    after = sizes(memory, "kv_after")
    tokens_first = shares(mended_on, "tokens_before", "tokens_measured")
    tokens_before = sorted(
        shares(unseen, "tokens_before", "tokens_measured")
        + [abs(term["ratio"] - 1) for term in tried if term["name"] == "KV cache"]
    )
    kv_holds = median(before) <= KV_BARS[0] and within(before) <= KV_BARS[1]
    tokens_fitted = shares(mended_on, "tokens_now", "tokens_measured")
    tpot, ttft = (shares(speed, f"{name}_now", f"{name}_measured") for name in ("tpot", "ttft"))
    tpot_after, ttft_after = (shares(speed, f"{name}_after", f"{name}_measured") for name in ("tpot", "ttft"))
    small = next(row for row in memory if row["id"] == SMALL_CARD)
    pool = abs(small["kv_before"] / small["kv_measured"] - 1)

    def kv(name: str, values: list[float], holds: bool) -> tuple[str, str, str]:
        figure = f"median {median(values):.3f}, 95 % within {within(values):.2f}, worst {values[-1]:.2f} GiB of {len(values)} starts"
        return name, figure, verdict(holds)

    def share(name: str, values: list[float], limit: float, what: str = "median") -> tuple[str, str, str]:
        figure = f"median {median(values):.1%}, 95 % within {within(values):.1%}, worst {values[-1]:.1%} of {len(values)}"
        held = median(values) if what == "median" else values[-1]
        return name, figure, verdict(held <= limit)

    limit = f"median {KV_BARS[0]}, 95 % {KV_BARS[1]} GiB"
    return [
        (
            *kv(
                f"available KV, predicted before starts that the planner had not seen ({limit}, 12 starts)",
                before,
                kv_holds,
            )[:2],
            verdict(kv_holds) + ("" if len(before) >= 12 else f" on {len(before)} starts of 12"),
        ),
        kv(
            f"the same of the first planner, which was then mended on these starts ({limit})",
            first,
            median(first) <= KV_BARS[0] and within(first) <= KV_BARS[1],
        ),
        kv(
            f"available KV of the mended planner on those starts ({limit}): a fit, no prediction",
            fitted,
            median(fitted) <= KV_BARS[0] and within(fitted) <= KV_BARS[1],
        ),
        kv(
            f"available KV after one start of that model (median {KV_BARS[2]} GiB), mended planner",
            after,
            median(after) <= KV_BARS[2],
        ),
        share("printed KV tokens, predicted before unseen starts (1 %)", tokens_before, TOKENS_BAR, "all"),
        share("printed KV tokens, predicted by the first planner (1 %)", tokens_first, TOKENS_BAR, "all"),
        share("printed KV tokens, mended, a fit (1 %)", tokens_fitted, TOKENS_BAR, "all"),
        share("time per token (median 8 %), these rows are in the fit", tpot, TPOT_BAR),
        share("time per token after one try of that model (8 %)", tpot_after, TPOT_BAR),
        share("idle time to first token (median 15 %), these rows are in the fit", ttft, TTFT_BAR),
        share("idle time to first token after one try of that model (15 %)", ttft_after, TTFT_BAR),
        (
            "KV pool of 27B int4 with fp8 cache in a 24 GB card's budget (5 %), a full prompt runs",
            f"{small['kv_before'] / GIB:.2f} predicted before, {small['kv_measured'] / GIB:.2f} GiB measured ({pool:.1%}),"
            f" {small['tokens_measured']:,} tokens; with a context of 32,768 a prompt of {small['prompt']:,} tokens ran",
            verdict(pool <= SMALL_CARD_BAR and small["prompt"] > 32_700),
        ),
    ]


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def gib(value: int | None) -> str:
    return "–" if value is None else f"{value / GIB:.2f}"


def miss(said: int | None, got: int) -> str:
    return "–" if said is None else f"{(said - got) / GIB:+.2f}"


def off(said: float | None, got: float | None) -> str:
    return "–" if not said or not got else f"{said / got - 1:+.1%}"


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def memory_section(rows: list[dict]) -> list[str]:
    lines = [
        "## Memory: H200, vLLM 0.25.1",
        "",
        f"Real starts with dummy weights, {rows[0]['date']}. Raw: {link(MEMORY_RAW)}; predicted before: {link(BEFORE[0])},",
        f"and by the mended planner, rows with a *: {link(BEFORE[1])}. What each start is:",
        '[ground-truth](../benchmarks/ground-truth/README.md). GiB per card, predicted less measured. "Now" is today\'s planner, which',
        'was mended on the rows without a *; "after a start" is the same with one other start of that model in the calibration',
        "store. Weights and tokens: today's planner.",
        "",
    ]
    cells = [
        (
            row["id"] + (" *" if row["is_unseen"] else ""),
            str(row["num_cards"]),
            gib(row["kv_measured"]),
            gib(row["kv_before"]),
            *(miss(row[f"kv_{when}"], row["kv_measured"]) for when in ("before", "now", "after")),
            off(row["weights_now"], row["weights_measured"]),
            number(row["tokens_measured"]),
            off(row["tokens_now"], row["tokens_measured"]),
        )
        for row in rows
    ]
    header = (
        "start",
        "cards",
        "KV measured",
        "predicted before",
        "miss before",
        "now",
        "after a start",
        "weights",
        "tokens printed",
        "miss",
    )
    return lines + table(header, cells)


def speed_section(rows: list[dict]) -> list[str]:
    lines = [
        "## Speed: H200, vLLM 0.25.1",
        "",
        f"vLLM's offline engine, dummy weights, 2026-11-30. Raw: {link(SPEED_RAW)}. The speed model was fitted on tables that",
        'hold these rows; "after" is the model without that fit, corrected by the other loads of the same model, as one',
        "`trimtab try` leaves it. The first token is one user's, prompts of the others were computed apart.",
        "",
    ]
    cells = [
        (
            row["model"].removeprefix("inferred-cyankiwi-"),
            str(row["users"]),
            number(row["isl"]),
            number(row["tpot_measured"], 2),
            number(row["tpot_now"], 2),
            off(row["tpot_now"], row["tpot_measured"]),
            off(row["tpot_after"], row["tpot_measured"]),
            number(row["ttft_measured"], 1),
            number(row["ttft_now"], 1),
            off(row["ttft_now"], row["ttft_measured"]),
            off(row["ttft_after"], row["ttft_measured"]),
        )
        for row in rows
    ]
    header = (
        "model",
        "users",
        "prompt",
        "TPOT ms",
        "predicted",
        "miss",
        "after",
        "TTFT ms",
        "predicted",
        "miss",
        "after",
    )
    return lines + table(header, cells)


def try_section(documents: list[dict]) -> list[str]:
    lines = ["## Tries", ""]
    if not documents:
        return [*lines, "None yet.", ""]
    cells = []
    for document in documents:
        for model in document["models"]:
            terms = {row["name"]: row for row in model["memory"]}
            cache, tokens = terms.get("available KV cache", {}), terms.get("KV cache", {})
            ratios = {
                name: [row[f"{name}_ratio"] for row in model["speed"] if row[f"{name}_ratio"]
                       and (row["concurrency"] == 1 if name == "ttft" else row["kind"] == "decode")]
                for name in ("ttft", "tpot")
            }  # fmt: skip
            cells.append((
                f"{model['num_cards']}x {model['card']}", f"vLLM {model['engine_version']}", model["checkpoint"], document["date"][:10],
                gib(cache.get("predicted")), gib(cache.get("measured")), off(tokens.get("predicted"), tokens.get("measured")),
                *(f"{median(found):.2f} ({len(found)})" if found else "–" for found in (ratios["tpot"], ratios["ttft"])),
                link(TRIES / document["file"]),
            ))  # fmt: skip
    header = (
        "cards",
        "engine",
        "model",
        "date",
        "KV predicted",
        "measured",
        "tokens miss",
        "TPOT measured/predicted",
        "idle TTFT",
        "raw",
    )
    return lines + table(header, cells)


def render() -> str:
    memory, speed = read_memory_rows(), read_speed_rows()
    add_calibrated_speed(speed)
    lines = [
        "# Accuracy: predicted against measured", "",
        "<!-- generated by benchmarks/accuracy/record.py; run `make docs` -->", "",
        "What was predicted beside what real engines did on cards we had, misses included; other people's measurements are scored in",
        "[speed-model](speed-model.md). A row of yours: `trimtab try MODEL --out result.json`, then",
        "`python benchmarks/accuracy/record.py result.json` in a checkout, and a pull request with what it writes; or the file alone in",
        "an issue. It holds no paths and no names of machines.",
        "",
        "## Against our bars", "",
        *table(("bar", "figures", ""), bar_rows(memory, speed)),
        *memory_section(memory), *speed_section(speed), *try_section(read_try_rows()),
        "Not measured on any card of ours: vLLM 0.17 and 0.33, cards other than H200; through the API server only Llama-3.1-8B.", "",
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def check_result(document: object, where: str) -> str:
    """Why a result cannot become a row, in one sentence; empty when it can."""
    if (
        not isinstance(document, dict)
        or document.get("tool") != "trimtab try"
        or document.get("schema_version") != 1
    ):
        return f"{where} is no result of trimtab try: make one with trimtab try MODEL --out {where}"
    models = document["models"]
    if not models or any(model["is_cpu_build"] or not model["card"] for model in models):
        return f"{where} measured no card: a CPU build proves the way, and is no row"
    if any(model["failure"] or not model["memory"] for model in models):
        return f"{where} holds a start that failed: try again, or report it as an issue"
    if re.search(r'"(?:/|~|[A-Za-z]:\\\\)[^"]*"', json.dumps(models)):
        return f"{where} holds a path of a machine: take it out of settings first"
    return ""


def add(name: str, folder: Path = TRIES) -> Path:
    """A result becomes a row: the file without the plan, which holds the machine's own facts."""
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{name} cannot be read as a result of trimtab try: {error}") from None
    reason = check_result(document, name)
    if reason:
        raise SystemExit(reason)
    document["plan"] = None
    first = document["models"][0]
    words = f"{document['date'][:10]}-{first['num_cards']}x{first['card']}-vllm-{first['engine_version']}-{first['checkpoint']}"
    path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).lower()}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> None:
    for name in sys.argv[1:]:
        print(f"added {add(name).relative_to(ROOT)}")
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
