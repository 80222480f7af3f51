"""The table of a result file: python table.py results-DATE.json"""

import json
import statistics
import sys
from pathlib import Path

GIB = 1 << 30
document = json.loads(Path(sys.argv[1]).read_text())
tools = list(document["rows"][0]["answers"])


def cell(answer: dict, measured: dict, key: str, *, is_share: bool) -> str:
    if "failed" in answer:
        return "fails"
    if answer.get(key) is None:
        return "no answer"
    miss = answer[key] - measured[key]
    return f"{miss / measured[key]:+.1%}" if is_share else f"{miss / GIB:+.2f}"


def print_table(title: str, key: str, *, is_share: bool) -> None:
    print(f"\n**{title}**\n\n| start | measured GiB | {' | '.join(tools)} |\n|---|---|{'---|' * len(tools)}")
    misses: dict[str, list[float]] = {tool: [] for tool in tools}
    for row in document["rows"]:
        measured = row["measured"]
        cells = [cell(row["answers"][tool], measured, key, is_share=is_share) for tool in tools]
        print(f"| {row['id']} | {measured[key] / GIB:.2f} | {' | '.join(cells)} |")
        for tool in tools:
            said = row["answers"][tool].get(key)
            if said is not None:
                miss = abs(said - measured[key])
                misses[tool].append(miss / measured[key] if is_share else miss / GIB)
    unit = "{:.1%}" if is_share else "{:.2f}"
    middle = [unit.format(statistics.median(misses[tool])) if misses[tool] else "" for tool in tools]
    print(f"| median size of the miss | | {' | '.join(middle)} |")


print_table("Weights per card", "weights_bytes", is_share=True)
print_table("KV cache left for the given share of the card, GiB off", "kv_cache_bytes", is_share=False)
print_table("KV cache of one request of max_model_len", "request_kv_bytes", is_share=True)
