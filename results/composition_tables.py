"""The tables of a composition against published methods, from results/run.sh's step ``compositions``.

Runs are added to compositions/SCENARIO.json, a few at a time, with the processor that made them.
"""

import json
import tomllib
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import ttest_rel, wilcoxon

HERE = Path(__file__).parent
COMPOSITION = "orthomean"
"""The composition that the search found; all others in the tables are published methods."""
PREFERRED = {"local-rate": "fedortho-mean-at-4", "local-rate-cxr8": "fedgs-mean"}
"""Where validation data prefers another composition."""


def composition_table(out: Path, scenario: str) -> list[list[str]]:
    """Return a row for each method, best first: its scores, and how far the composition is above it.

    p is that of the paired t-test over seeds, two-sided, and of Wilcoxon's signed-rank test over the last
    five evaluations of every seed, which are not independent of each other.
    """
    runs = stored_runs(out, scenario)
    composition = PREFERRED.get(scenario, COMPOSITION)
    ours = runs.get(composition, {})
    rows = []
    for method in sorted(runs, key=lambda name: -mean(run["final"] for run in runs[name].values())):
        found = runs[method]
        scores = [spread(found, key) for key in ("final", "last")]
        rows.append([method, local_epochs(found), *scores, *gain(ours, found)])
    compared = [f"{composition} is above by", "seeds won", "p (t)", "p (Wilcoxon)"]
    return [["method", "local epochs", "final %", "last %", *compared], *rows] if rows else []


def local_epochs(runs: dict[str, dict]) -> str:
    """Return how many epochs the clients of a run trained in all: the least and the most of several runs."""
    least, most = (choose(run["epochs"] for run in runs.values()) for choose in (min, max))
    return f"{least}" if least == most else f"{least} to {most}"


def stored_runs(out: Path, scenario: str) -> dict[str, dict[str, dict]]:
    """Return all runs by method and seed: those stored before, and those in ``out``, which are stored too."""
    file = HERE / "compositions" / f"{scenario}.json"
    runs = json.loads(file.read_text()) if file.exists() else {}
    made = sorted((out / f"compositions-{scenario}").glob("*/seed-*/summary.json"))
    for path in made:
        summary = json.loads(path.read_text())
        trace = [json.loads(line) for line in path.with_name("trace.jsonl").read_text().splitlines()]
        scores = [record[summary["metric"]] for record in trace if record["kind"] == "evaluation"]
        kept = {"final": summary["final"], "last": summary["last"], "evaluations": scores[-5:]}
        kept["processor"] = summary["arithmetic"]["cpu"]
        kept["epochs"] = sum(record["epochs"] for record in trace if record["kind"] == "update")
        runs.setdefault(summary["method"], {})[str(summary["seed"])] = kept
    if made:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")
    return runs


def rate_table(out: Path, scenario: str) -> list[list[str]]:
    """Return the validation scores of the methods since 2023 by η_g, best first, and keep them.

    The best rates are added to SCENARIO/tuned.toml, where the tables' runs find them.
    """
    file = HERE / "compositions" / f"rates-{scenario}.json"
    curves = json.loads(file.read_text()) if file.exists() else {}
    made = sorted((out / f"newer-{scenario}").glob("*/tune.json"))
    for path in made:
        curves |= json.loads(path.read_text())["methods"]
    best = {method: max(curve, key=lambda point: point["mean"] or 0.0) for method, curve in curves.items()}
    ranked = sorted(curves, key=lambda method: -(best[method]["mean"] or 0.0))
    if made:
        file.write_text(json.dumps(curves, indent=1, sort_keys=True) + "\n")
        tuned = HERE / scenario / "tuned.toml"
        known = tomllib.loads(tuned.read_text())["methods"]
        added = [
            f"\n[methods.{name}]\nglobal_lr = {best[name]['value']}\n" for name in ranked if name not in known
        ]
        tuned.write_text(tuned.read_text() + "".join(added))
    rows = [[method, best[method]["value"], ", ".join(map(scored, curves[method]))] for method in ranked]
    return [["method", "best η_g", "validation % at each η_g"], *rows] if rows else []


def scored(point: dict) -> str:
    return f"{point['value']}: " + ("–" if point["mean"] is None else f"{100 * point['mean']:.1f}")


def spread(runs: dict[str, dict], key: str) -> str:
    values = [100 * run[key] for run in runs.values()]
    return f"{mean(values):.2f}" + (f"±{stdev(values):.2f}" if len(values) > 1 else "")


def gain(ours: dict[str, dict], theirs: dict[str, dict]) -> list[str]:
    """Return how far our runs are above theirs with the same seeds, how many are, and how sure that is."""
    seeds = sorted({*ours} & {*theirs})
    if len(seeds) < 2 or ours is theirs:
        return ["–"] * 4
    pairs = [(ours[seed]["final"], theirs[seed]["final"]) for seed in seeds]
    apart = [100 * (one - other) for one, other in pairs]
    each = [
        one - other
        for seed in seeds
        for one, other in zip(ours[seed]["evaluations"], theirs[seed]["evaluations"], strict=True)
    ]
    won = f"{sum(value > 0 for value in apart)} of {len(seeds)}"
    probable = (ttest_rel(*zip(*pairs, strict=True)).pvalue, wilcoxon(each).pvalue)
    return [f"{mean(apart):.2f}±{stdev(apart):.2f}", won, *(f"{p:.2g}" for p in probable)]
