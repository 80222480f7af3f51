"""Write the fitted figures as the literal table that trimtab ships."""

from pathlib import Path

TARGET = Path(__file__).parents[2] / "src" / "trimtab" / "planner" / "latency_table.py"
KINDS = ("hopper", "blackwell", "gddr6", "gddr7")

HEADER = '''"""Pure. The speed model's fitted figures. Written by benchmarks/speed/fit_speed.py --write; not by hand.

Fitted on 2026-11-30 to measured vLLM servers: the vLLM rows of the accuracy sample in NVIDIA's
aiconfigurator-core 0.12.0 (Apache-2.0; H100, H200, B200, B300; vLLM 0.12 to 0.19) and public
measurements on 3090, 5090, RTX A6000 and RTX PRO 6000 (sources by row in
benchmarks/speed/tables/consumer-cards.csv; vLLM 0.17 to 0.27). benchmarks/speed/README.md has the
method, the cross-validation and what the tables cannot tell.
"""

from __future__ import annotations

from trimtab.planner.latency_steps import CardTiming, EngineTiming

__all__ = ["BANDS", "CARD_TIMINGS", "ENGINE", "LINK_TIMINGS", "PAIR_FACTORS"]
'''


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.4e}"


def write_table(values: dict[str, float], factors: dict[tuple, tuple], bands: dict[str, tuple]) -> None:
    """The module's text, from parameters by ``name/class``, pair factors and error bands."""
    names = [name.rsplit("/", 1)[0] for name in values if name.endswith("/hopper")]
    lines = [HEADER, "CARD_TIMINGS: dict[str, CardTiming] = {"]
    for kind in KINDS:
        lines.append(f'    "{kind}": CardTiming(')
        lines += [f"        {name}={_number(values[f'{name}/{kind}'])}," for name in names]
        lines += [
            "        reduce_s=0.0,",
            "        reduce_growth=0.0,",
            "        reduce_bytes_per_s=1.0,",
            "    ),",
        ]
    lines += ["}", '"""By class of card; the all-reduce comes from LINK_TIMINGS."""', ""]
    lines.append("LINK_TIMINGS: dict[tuple[str, str], tuple[float, float, float]] = {")
    for kind in KINDS:
        for link in ("nvlink", "pcie_p2p", "pcie"):
            lines.append(f'    ("{kind}", "{link}"): {_link(values, kind, link)},')
    lines += [
        "}",
        '"""(seconds of an all-reduce of two, growth per further rank, bytes per second) by class and wires."""',
        "",
    ]
    lines.append("ENGINE = EngineTiming(")
    lines += [
        f"    {name.removeprefix('engine/')}={_number(value)},"
        for name, value in values.items()
        if name.startswith("engine/")
    ]
    lines += [")", "", "PAIR_FACTORS: dict[tuple[str, int, int, int, str], tuple[float, float]] = {"]
    for (architecture, layers, hidden, bits, card), (ttft, tpot) in sorted(factors.items()):
        key = f'("{architecture}", {layers}, {hidden}, {bits}, "{card}")'
        lines.append(f"    {key}: ({ttft:.3f}, {tpot:.3f}),")
    lines += ["}", '"""(TTFT, TPOT) measured over modelled, where a model was measured on a card."""', ""]
    lines.append("BANDS: dict[str, tuple[float, float, int]] = {")
    lines += [
        f'    "{name}": ({tpot:.2f}, {ttft:.2f}, {rows}),' for name, (tpot, ttft, rows) in bands.items()
    ]
    lines += [
        "}",
        '"""By card, then by class: (TPOT error, TTFT error) that four of five rows of pairs left out',
        'of the fit stayed within, and the number of rows."""',
    ]
    TARGET.write_text("\n".join(lines) + "\n")


def _link(values: dict[str, float], kind: str, link: str) -> str:
    """The fitted pair, or the nearest fitted one of the class: data-centre PCIe takes GDDR6's."""
    for name in (f"{kind}/{link}", f"gddr6/{link}"):
        if f"reduce_s/{name}" in values:
            fields = ("reduce_s", "reduce_growth", "reduce_bytes_per_s")
            return "(" + ", ".join(_number(values[f"{field}/{name}"]) for field in fields) + ")"
    raise KeyError(link)
