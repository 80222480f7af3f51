"""Fit the speed model's efficiencies to the tables, cross-validate, and print the literal table.

    python benchmarks/speed/fit_speed.py            cross-validation, then the fit
    python benchmarks/speed/fit_speed.py --write    also writes src/trimtab/planner/latency_table.py

Folds: whole (model, card) pairs are left out; a second run leaves out every fifth row of each pair.
Parameters are logarithms with wide Gaussian priors at physically plausible values, so that what
the tables cannot tell stays there; residuals are logarithms of predicted over measured under a soft
L1 loss, each pair weighted by the inverse square root of its rows.
"""

import argparse
from types import SimpleNamespace

import numpy as np
from scipy.optimize import least_squares
from sklearn.tree import DecisionTreeRegressor
from table_rows import Entry, read_entries, stack, take
from write_table import write_table

from trimtab.planner.latency_request import Demand, estimate_request_times, estimate_slots
from trimtab.planner.latency_steps import CardTiming, EngineTiming

FIGURES = ("ttft", "tpot", "prefill", "total")
KINDS = ("hopper", "blackwell", "gddr6", "gddr7")
LINKS = (
    "hopper/nvlink",
    "blackwell/nvlink",
    "gddr6/nvlink",
    "gddr6/pcie_p2p",
    "gddr6/pcie",
    "gddr7/pcie_p2p",
    "gddr7/pcie",
)
# name: (start per class, lower, upper, prior sigma of the logarithm). The classes share one value
# per name with that prior; each deviates from it by DEVIATION (in the logarithm).
DEVIATION = 0.25
BARE = 3.0
LOOSE = {"linear_layer_s": 0.6, "linear_prompt_s": 0.6, "read": 0.15}
# Deviations of their own: recurrent kernels differ by card more than others; reads differ less.
TIMING = {
    "read": ((0.75, 0.75, 0.8, 0.8), 0.3, 1.0, 0.2),
    "read_experts": ((0.55, 0.55, 0.5, 0.5), 0.05, 1.0, 0.4),
    "read_cache": ((0.7, 0.7, 0.6, 0.6), 0.1, 1.0, 0.4),
    "unpack": ((0.04, 0.04, 0.04, 0.04), 0.005, 1.0, 0.5),
    "compute_16": ((0.65, 0.65, 0.7, 0.7), 0.2, 1.0, 0.2),
    "compute_8": ((0.6, 0.6, 0.6, 0.6), 0.1, 1.0, 0.3),
    "compute_4": ((0.5, 0.5, 0.6, 0.5), 0.05, 1.0, 0.5),
    "compute_experts": ((0.2, 0.2, 0.3, 0.3), 0.02, 1.0, 0.5),
    "narrow_width": ((300.0, 300.0, 300.0, 300.0), 1.0, 3000.0, 0.8),
    "compute_attention": ((0.4, 0.4, 0.35, 0.35), 0.05, 1.0, 0.4),
    "attention_layer_s": ((15e-6, 15e-6, 15e-6, 15e-6), 2e-6, 100e-6, 0.5),
    "latent_layer_s": ((25e-6, 25e-6, 25e-6, 25e-6), 2e-6, 150e-6, 0.5),
    "linear_layer_s": ((20e-6, 20e-6, 20e-6, 20e-6), 2e-6, 150e-6, 0.5),
    "moe_layer_s": ((25e-6, 25e-6, 25e-6, 25e-6), 2e-6, 150e-6, 0.5),
    "dense_layer_s": ((8e-6, 8e-6, 8e-6, 8e-6), 1e-6, 100e-6, 0.5),
    "prefill_layer_s": ((100e-6, 100e-6, 150e-6, 150e-6), 10e-6, 1e-3, 0.6),
    "linear_prompt_s": ((60e-3, 60e-3, 60e-3, 60e-3), 1e-3, 300e-3, 0.8),
    "linear_scan_s": ((0.25e-6, 0.25e-6, 0.25e-6, 0.25e-6), 0.01e-6, 2e-6, 0.6),
}
LINK = {
    "hopper/nvlink": (10e-6, 250e9),
    "blackwell/nvlink": (10e-6, 300e9),
    "gddr6/nvlink": (12e-6, 40e9),
    "gddr6/pcie_p2p": (15e-6, 15e9),
    "gddr6/pcie": (25e-6, 8e9),
    "gddr7/pcie_p2p": (15e-6, 20e9),
    "gddr7/pcie": (25e-6, 10e9),
}
ENGINE = {
    "step_s": (0.4e-3, 0.05e-3, 4e-3, 0.6),
    "sequence_s": (10e-6, 1e-6, 100e-6, 0.7),
    "request_s": (12e-3, 1e-3, 80e-3, 0.6),
    "prompt_token_s": (2e-6, 1e-8, 30e-6, 1.0),
    "mixed_share": (0.85, 0.2, 1.5, 0.3),
    "steps_waited": (1.5, 0.1, 4.0, 0.5),
    "burst_share": (0.06, 0.005, 0.3, 0.5),
    "queue_share": (0.5, 0.05, 3.0, 0.6),
    "coverage": (0.9, 0.3, 1.2, 0.2),
    "occupancy": (0.85, 0.6, 1.3, 0.1),
}


def _parameters() -> list[tuple[str, float, float, float, float]]:
    found = []
    for name, (starts, low, high, sigma) in TIMING.items():
        found += [(f"{name}/{kind}", s, low, high, sigma) for kind, s in zip(KINDS, starts, strict=True)]
    for link, (latency, speed) in LINK.items():
        found.append((f"reduce_s/{link}", latency, 1e-6, 200e-6, 0.6))
        growth = (0.1, 0.01, 1.0, 0.7) if "nvlink" in link else (1.0, 0.2, 2.0, 0.25)
        found.append((f"reduce_growth/{link}", *growth))
        found.append((f"reduce_bytes_per_s/{link}", speed, 1e9, 900e9, 0.6))
    found += [(f"engine/{name}", *rest) for name, rest in ENGINE.items()]
    return found


PARAMETERS = _parameters()
NAMES = [p[0] for p in PARAMETERS]
START, LOW, HIGH = (np.log([p[i] for p in PARAMETERS]) for i in (1, 2, 3))
SIGMA = np.array([p[4] for p in PARAMETERS])
INDEX = {name: i for i, name in enumerate(NAMES)}


def predict(theta: np.ndarray, table: SimpleNamespace) -> SimpleNamespace:
    """Run the shipped functions over a table."""
    value = np.exp(theta)
    per_kind = {name: np.array([value[INDEX[f"{name}/{k}"]] for k in KINDS]) for name in TIMING}
    kinds = np.array([KINDS.index(k) for k in table.kind])
    per_row = {name: values[kinds] for name, values in per_kind.items()}
    for name in ("reduce_s", "reduce_growth", "reduce_bytes_per_s"):
        per_row[name] = np.array([value[INDEX[f"{name}/{link}"]] for link in table.link])
    engine = EngineTiming(**{name: value[INDEX[f"engine/{name}"]] for name in ENGINE})
    d = table.demand
    tokens = d.input_tokens + d.output_tokens / 2.0
    slots = estimate_slots(table.profile, table.cache_bytes, tokens, d.groups, engine.occupancy)
    told = np.maximum(table.kv_tokens / (tokens * engine.occupancy), 1.0)
    slots = np.where(table.kv_tokens > 0, told, slots)
    demand = Demand(slots=np.minimum(slots, table.seqs), **vars(d))
    times = estimate_request_times(table.profile, demand, table.rates, CardTiming(**per_row), engine)
    own = times.ttft_s - times.queue_s
    whole = times.ttft_s + times.tpot_s * (d.output_tokens - 1.0)
    return SimpleNamespace(
        ttft=times.ttft_s * 1e3,
        tpot=times.tpot_s * 1e3,
        prefill=d.input_tokens / own,
        total=d.concurrency * d.output_tokens / whole,
        times=times,
    )


def _prior(theta: np.ndarray) -> np.ndarray:
    """Shared value against its prior, classes against the shared value, the rest against theirs."""
    moved = (theta - START) / SIGMA
    found = [moved[INDEX[n]] for n in NAMES if n.split("/")[0] not in TIMING]
    for name, (_, _, _, sigma) in TIMING.items():
        steps = np.array([(theta - START)[INDEX[f"{name}/{kind}"]] for kind in KINDS])
        mean = steps.mean()
        found += [mean / sigma, *((steps - mean) / LOOSE.get(name, DEVIATION))]
    return np.array(found)


def weigh(table: SimpleNamespace) -> np.ndarray:
    """Each pair's rows together count as the square root of their number."""
    names, counts = np.unique(table.pair, return_counts=True)
    count = dict(zip(names, counts, strict=True))
    weight = np.array([count[p] ** -0.25 for p in table.pair]) * table.trust
    return weight / weight.mean()


def fit(table: SimpleNamespace, start: np.ndarray, rounds: int) -> np.ndarray:
    """The parameters that minimise the robust sum."""
    weight = weigh(table)
    measured = (table.ttft, table.tpot, table.prefill, table.total)
    has_ttft, has_tpot, has_prefill, has_total = (~np.isnan(v) for v in measured)

    # Rates of consumer rows' first tokens are loose (short prompts, old nightlies): half weight. One user's
    # first token of a bare engine has no queue and no server in it: nothing else tells a prompt's own time.
    def residuals(theta: np.ndarray) -> np.ndarray:
        got = predict(theta, table)
        is_near = np.select([table.table == "serving", table.table == "offline"], [1.0, BARE], 0.5)
        return np.concatenate(
            [
                (weight * is_near * np.log(got.ttft / table.ttft))[has_ttft],
                (1.5 * weight * np.log(got.tpot / table.tpot))[has_tpot],
                (0.7 * weight * np.log(got.prefill / table.prefill))[has_prefill],
                (weight * np.log(got.total / table.total))[has_total],
                0.7 * _prior(theta),
            ]
        )

    found = least_squares(residuals, start, bounds=(LOW, HIGH), loss="soft_l1", f_scale=0.15, max_nfev=rounds)
    return found.x


def error(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Absolute relative errors of the measured rows."""
    known = ~np.isnan(measured)
    return np.abs(predicted[known] / measured[known] - 1.0)


def _empty(rows: int) -> SimpleNamespace:
    return SimpleNamespace(**{name: np.full(rows, np.nan) for name in FIGURES})


def leave_out(table: SimpleNamespace, theta: np.ndarray, groups: np.ndarray) -> SimpleNamespace:
    """Predictions of each row by a fit that never saw its group."""
    out = _empty(len(table.pair))
    for group in np.unique(groups):
        mask = groups == group
        got = predict(fit(take(table, ~mask), theta, 12), take(table, mask))
        for name in FIGURES:
            getattr(out, name)[mask] = getattr(got, name)
    return out


def pair_factors(entries: list[Entry], table: SimpleNamespace, got: SimpleNamespace) -> dict[tuple, tuple]:
    """Measured over predicted by pair key, shrunk towards 1 by three rows' worth of doubt."""
    found = {}
    for key in dict.fromkeys(entry.key for entry in entries):
        mask = np.array([entry.key == key for entry in entries])
        factors = []
        for name in ("ttft", "tpot"):
            ratio = np.log(getattr(table, name)[mask] / getattr(got, name)[mask])
            ratio = ratio[~np.isnan(ratio)]
            middle = np.median(ratio) if len(ratio) else 0.0
            factors.append(float(np.exp(middle * len(ratio) / (len(ratio) + 3.0))))
        if mask.sum() >= 3:
            found[key] = tuple(factors)
    return found


def apply_factors(entries: list[Entry], got: SimpleNamespace, factors: dict[tuple, tuple]) -> SimpleNamespace:
    """Predictions with the factors of known pairs, as the shipped estimate applies them."""
    ttft = np.array([factors.get(e.key, (1.0, 1.0))[0] for e in entries])
    tpot = np.array([factors.get(e.key, (1.0, 1.0))[1] for e in entries])
    queue = got.times.queue_s * 1e3
    return SimpleNamespace(
        ttft=(got.ttft - queue) * ttft + queue * tpot,
        tpot=got.tpot * tpot,
        prefill=got.prefill / ttft,
        total=got.total / tpot,
    )


def leave_rows_out(entries: list[Entry], table: SimpleNamespace, theta: np.ndarray) -> SimpleNamespace:
    """Predictions of every fifth row in turn, other rows of its pair seen."""
    out = _empty(len(entries))
    numbers = np.arange(len(entries))
    shuffled = np.random.default_rng(7).permutation(numbers)
    for fold in range(5):
        held = np.isin(numbers, shuffled[fold::5])
        seen = [e for e, is_held in zip(entries, held, strict=True) if not is_held]
        hidden = [e for e, is_held in zip(entries, held, strict=True) if is_held]
        fitted = fit(take(table, ~held), theta, 12)
        train = take(table, ~held)
        factors = pair_factors(seen, train, predict(fitted, train))
        got = apply_factors(hidden, predict(fitted, take(table, held)), factors)
        for name in FIGURES:
            getattr(out, name)[held] = getattr(got, name)
    return out


def grow_tree(entries: list[Entry], table: SimpleNamespace, folds: np.ndarray) -> SimpleNamespace:
    """A plain regression tree on the table's own columns, held-out fold by fold: the bar to beat."""
    out = _empty(len(entries))
    p, d, r = table.profile, table.demand, table.rates
    columns = np.column_stack(
        [
            p.weight_bytes, p.num_layers, p.hidden_size, p.experts.bytes_each, p.experts.top_k,
            p.kv_bytes_per_token, d.input_tokens, d.output_tokens, d.concurrency, d.ranks, d.groups,
            r.bandwidth, r.flops_16, r.flops_8,
        ]
    )  # fmt: skip
    for fold in np.unique(folds):
        held = folds == fold
        for name in ("ttft", "tpot"):
            target = np.log(getattr(table, name))
            usable = ~held & ~np.isnan(target)
            tree = DecisionTreeRegressor(min_samples_leaf=3, random_state=0)
            tree.fit(columns[usable], target[usable])
            getattr(out, name)[held] = np.exp(tree.predict(columns[held]))
    return out


def show(table: SimpleNamespace, got: SimpleNamespace, label: str, *, has_pairs: bool = False) -> None:
    """Median errors by table, and by pair when asked."""
    print(f"== {label}")
    for name in ("serving", "consumer", "offline"):
        print("  ", name, _line(table, got, table.table == name))
    solid = table.is_solid & (table.table == "consumer") & ~np.isnan(table.tpot)
    rate = np.abs(table.tpot[solid] / got.tpot[solid] - 1.0)
    print(
        f"   consumer decode tokens/s, high and medium confidence: n={len(rate)} {100 * np.median(rate):.1f}%"
    )
    if has_pairs:
        for pair in np.unique(table.pair):
            print("     ", pair, _line(table, got, table.pair == pair))


def _line(table: SimpleNamespace, got: SimpleNamespace, mask: np.ndarray) -> str:
    found = []
    for name in FIGURES:
        measured, predicted = getattr(table, name)[mask], getattr(got, name)[mask]
        known = ~np.isnan(measured) & ~np.isnan(predicted)
        if known.any():
            errors = np.abs(predicted[known] / measured[known] - 1.0)
            bias = np.median(predicted[known] / measured[known])
            found.append(f"{name} n={known.sum()} {100 * np.median(errors):.1f}% bias {bias:.2f}")
    return " | ".join(found)


def main() -> None:
    """Fit, validate, and write the table when asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="no cross-validation")
    parser.add_argument("--write", action="store_true", help="write planner/latency_table.py")
    args = parser.parse_args()
    entries, reasons = read_entries()
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:12]:
        print(f"  not used {count:4d}  {reason}")
    table = stack(entries)
    theta = fit(table, START, 60)
    got = predict(theta, table)
    factors = pair_factors(entries, table, got)
    show(table, got, "in sample, without pair factors", has_pairs=True)
    if args.quick:
        return
    unseen = leave_out(table, theta, table.pair)
    show(table, unseen, "whole (model, card) pairs left out", has_pairs=True)
    by_shape = leave_out(table, theta, table.shape)
    show(table, by_shape, "whole (shape, card) pairs left out: no fine-tune or other quantisation seen")
    show(table, leave_rows_out(entries, table, theta), "rows of seen pairs left out (5 folds)")
    show(table, grow_tree(entries, table, table.pair), "plain regression tree, whole pairs left out")
    shuffled = np.random.default_rng(7).permutation(len(entries)) % 5
    show(table, grow_tree(entries, table, shuffled), "plain regression tree, rows left out")
    if args.write:
        values = dict(zip(NAMES, np.exp(theta), strict=True))
        write_table(values, factors, bands(entries, table, unseen))


def bands(entries: list[Entry], table: SimpleNamespace, unseen: SimpleNamespace) -> dict[str, tuple]:
    """By card and by class: the error that four of five rows of unseen pairs stay within."""
    cards = np.array([entry.case.card.name for entry in entries])
    found = {}
    for name in [*np.unique(cards), *KINDS]:
        mask = (cards == name) | (table.kind == name)
        tpot = error(unseen.tpot[mask], table.tpot[mask])
        ttft = error(unseen.ttft[mask], table.ttft[mask])
        if len(tpot) >= 5:
            late = np.quantile(ttft, 0.8) if len(ttft) >= 5 else 1.0
            found[str(name)] = (float(np.quantile(tpot, 0.8)), float(late), len(tpot))
    return found


if __name__ == "__main__":
    main()
