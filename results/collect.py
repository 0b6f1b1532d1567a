"""Gather what results/run.sh made into this folder: results/collect.py OUT.

Tables go into README.md between their marks; figures, numbers and the chosen learning rates beside it.
"""

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from attack_tables import attack_tables
from composition_tables import composition_table, rate_table
from privacy_figure import privacy_figure, read_privacy

from asyncmanifold.configuration.config import load_config
from asyncmanifold.report.comparison import average, tabulate
from asyncmanifold.report.figure import Figure, layer, quantity
from asyncmanifold.report.figure_files import as_svg
from asyncmanifold.report.score_layers import pick, series_encodings
from asyncmanifold.session.trace import read_trace

HERE = Path(__file__).parent
PAPER = tomllib.loads((HERE / "paper.toml").read_text())
FIGURES = ("score-updates", "gini", "theil")
EPOCHS = (1, 2, 5, 10)
MOMENTS = (16, 64, 112)
SURFACES = ("surfaces-digits", "surfaces-femnist")
TRAFFIC = ("upload_bytes", "download_bytes")
CODECS = ("float32", "fp16", "int8", "curve")


def main(out: Path) -> None:
    tables = {f"{name}-mini": scenario_table(out, name) for name in ("femnist", "shakespeare", "cxr8")}
    tables |= {"central": central(out), "ablation": ablation(out), "local-epochs": local_epochs(out)}
    tables |= {"local-epochs-threshold-1": local_epochs_at_1(out)}
    tables |= {f"paper-{name}": paper_table(out, name) for name in ("femnist", "shakespeare", "cxr8")}
    tables |= {name: curved(out, name) for name in ("sphere", "hyperbolic")}
    tables |= {"landscape": landscapes(out), "thresholds": thresholds(out)}
    tables |= {name: comparison(out, name) for name in ("on-chord", "tunnels", *SURFACES)}
    tables |= {"long-jobs": long_jobs(out), "uploads": uploads(out), "privacy": privacy(out)}
    for scenario in ("femnist-mini", "shakespeare-mini", "cxr8-mini"):
        tables[f"search-{scenario}"] = search(out, scenario)
        if rows := rate_table(out, scenario):
            tables[f"rates-{scenario}"] = markdown(rows[0], rows[1:])
    for scenario in ("femnist-mini", "shakespeare-mini", "cxr8-mini", "local-rate", "local-rate-cxr8"):
        if rows := composition_table(out, scenario):
            tables[f"composition-{scenario}"] = markdown(rows[0], rows[1:])
    tables |= {f"attacks-{name}": markdown(rows[0], rows[1:]) for name, rows in attack_tables(out).items()}
    readme = (HERE / "README.md").read_text()
    for name, table in tables.items():
        if table:
            readme = filled(readme, name, table)
    (HERE / "README.md").write_text(readme)


def scenario_table(out: Path, name: str) -> str:
    """Return our numbers beside the paper's, and keep the files they come from."""
    scenario = f"{name}-mini"
    if not (out / scenario / "compare.json").exists():
        return ""
    chosen = tomllib.loads((out / f"{scenario}-tune" / "tuned.toml").read_text())["methods"]
    for file in ("tuned.toml", "tune.json"):
        keep(out / f"{scenario}-tune" / file, f"{scenario}/{file}")
    return beside_paper(out, scenario, name, {method: entry["global_lr"] for method, entry in chosen.items()})


def paper_table(out: Path, name: str) -> str:
    """Return the paper's own scenario at its size beside the paper's numbers, if it was run to its end."""
    folder = out / f"paper-{name}"
    if not (folder / "compare.json").exists():
        return ""
    made = json.loads((folder / "compare.json").read_text())["methods"]
    configs = {method: load_config(name, method) for method in made}
    for method, config in configs.items():
        summary = json.loads((folder / method / "seed-0" / "summary.json").read_text())
        if summary["updates"] != config.run.updates:
            return ""  # tried out with fewer updates
    return beside_paper(out, folder.name, name, {m: config.method.global_lr for m, config in configs.items()})


def beside_paper(out: Path, scenario: str, name: str, rates: dict[str, float]) -> str:
    """Return a comparison's table beside the paper's numbers for ``name``, and keep its files."""
    compared = json.loads((out / scenario / "compare.json").read_text())["methods"]
    keep(out / scenario / "compare.json", f"{scenario}/compare.json")
    for figure in FIGURES:
        keep(out / scenario / "figures" / f"{figure}.svg", f"{scenario}/{figure}.svg")
    rows = [scenario_row(m, row, rates[m], PAPER[name].get(m)) for m, row in compared.items()]
    more = ["AUPRC %"] if name == "cxr8" else []
    theirs = ["η_g", "final %", *more, "T_e", "Gini ×100", "Theil ×1000"]
    ours = [*theirs[:2], "best %", *theirs[2:]]
    return markdown(["method", *ours, *(f"paper: {head}" for head in theirs)], rows)


def scenario_row(method: str, row: dict[str, Any], rate: float, paper: Any) -> list[str]:
    scores = row["scores"]
    ours = [
        f"{rate:g}",
        spread(row["final"], 100.0, 2),
        spread(row["best"], 100.0, 2),
        *([spread(scores["auprc"], 100.0, 2)] if scores else []),
        spread(row["rounds_to_target"], 1.0, 0, row["runs"]),
        spread(row["gini"], 100.0, 2),
        spread(row["theil"], 1000.0, 2),
    ]
    if paper is None:
        return [method, *ours, *["–"] * (len(ours) - 1)]
    theirs = [
        f"{paper['lr']:g}",
        "{:.2f}±{:.2f}".format(*paper["score"]),
        *(["{:.2f}±{:.2f}".format(*paper["auprc"])] if scores else []),
        "{:.0f}±{:.1f}".format(*paper["T"]),
        f"{100 * paper['gini']:.2f}",
        f"{1000 * paper['theil']:.2f}",
    ]
    return [method, *ours, *theirs]


def spread(entry: dict[str, Any], factor: float, digits: int, runs: int | None = None) -> str:
    if entry["mean"] is None:
        return "–"
    text = f"{factor * entry['mean']:.{digits}f}"
    if runs is not None and entry["count"] < runs:
        return f"{text} ({entry['count']}/{runs})"
    return text if entry["sd"] is None else f"{text}±{factor * entry['sd']:.{digits}f}"


def central(out: Path) -> str:
    """Return what the same CNN reaches on the pooled data, beside the best method of the same passes."""
    if not all((out / name / "compare.json").exists() for name in ("central-32", "femnist-mini")):
        return ""
    compared = json.loads((out / "femnist-mini" / "compare.json").read_text())["methods"]
    rows = []
    for epochs, names in ((32, "straight"), (64, "curves")):
        file = out / f"central-{epochs}" / "compare.json"
        if not file.exists():
            continue
        alone = json.loads(file.read_text())["methods"]["asyncsgd"]
        some = {m: row["final"] for m, row in compared.items() if ("bezier" in m) == (names == "curves")}
        best = max(some, key=lambda method: some[method]["mean"])
        gap = 100 * (alone["final"]["mean"] - some[best]["mean"])
        ours = f"{best} {spread(some[best], 100.0, 2)}"
        rows.append([f"{epochs} ({names})", spread(alone["final"], 100.0, 2), ours, f"{gap:.2f}"])
    return markdown(["passes over the pooled data", "central %", "best method %", "points apart"], rows)


def ablation(out: Path) -> str:
    """Return each reading at its best learning rate, chosen on validation data, with what its trace says."""
    file = out / "ablation-tune" / "tune.json"
    if not file.exists():
        return ""
    keep(file, "ablation/tune.json")
    rows = []
    for method, curve in json.loads(file.read_text())["methods"].items():
        best = max((entry for entry in curve if entry["mean"] is not None), key=lambda entry: entry["mean"])
        run = out / "ablation-tune" / method / f"global_lr={best['value']}" / "seed-0"
        summary = json.loads((run / "summary.json").read_text())
        rows.append([method, best["value"], *percent([best["mean"], summary["final"]]), *diagnosis(run)])
    heads = ["reading", "η_g", "validation %", "test %", "mean cosines", "projected %", "t*", "step"]
    return markdown(heads, rows)


def diagnosis(run: Path) -> list[str]:
    """Return mean cosines to the drift, the share of control points projected, mean t* and step length."""
    stale = [r for r in read_trace(run / "trace.jsonl") if r["kind"] == "update" and r["drift_norm"] > 0.0]
    angles = [mean(values) for values in zip(*(r["cosines"] for r in stale), strict=True)]
    projected = mean(flag for r in stale for flag in r["projected"])
    return [
        ", ".join(f"{angle:.2f}" for angle in angles),
        f"{100 * projected:.0f}",
        f"{mean(r['t'] for r in stale):.3f}",
        f"{mean(r['step_norm'] for r in stale):.3f}",
    ]


def landscapes(out: Path) -> str:
    """Return the loss along the curve and its chord, at the client and where the server went."""
    rows = []
    for update in MOMENTS:
        folder = out / f"landscape-{update}"
        if not (folder / "landscape.json").exists():
            continue
        if update == MOMENTS[1]:
            for figure in folder.glob("figures/landscape-*-client-*.svg"):
                keep(figure, f"landscape/{figure.name.removeprefix('landscape-')}")
        found = json.loads((folder / "landscape.json").read_text())
        scenes = {(scene["view"], scene["data"]): scene for scene in found["scenes"]}
        rows.append([str(update), *losses(scenes["client", "train"]), *losses(scenes["server", "test"])])
    heads = ["start", "stop on curve", "stop on chord", "middle of curve", "middle of chord", "end"]
    columns = [f"{where}: {head}" for where in ("local", "test") for head in heads]
    return markdown(["update", *columns], rows) if rows else ""


def losses(scene: dict[str, Any]) -> list[str]:
    curve, chord, stop = scene["curve_losses"], scene["chord_losses"], scene["stop"]
    middle = len(curve) // 2
    values = [curve[0], stop["curve_loss"], stop["chord_loss"], curve[middle], chord[middle], curve[-1]]
    return [f"{value:.2f}" for value in values]


def local_epochs(out: Path) -> str:
    """Return the accuracy by local epochs as a table, beside the paper's, and draw it."""
    ours: dict[str, list[float]] = {}
    for start in ("", "-on-chord"):
        found = compared_by_epochs(out, start)
        ours |= {f"{m}{start}": [100 * row["final"]["mean"] for row in rows] for m, rows in found.items()}
    if not ours:
        return ""
    (HERE / "local-epochs.svg").write_text(as_svg(epochs_figure(ours)))
    paper = PAPER["local-epochs"]
    blank = ["–"] * len(EPOCHS)
    rows = [
        [m, *percent(values, 1.0), *(percent(paper[m], 1.0) if m in paper else blank)]
        for m, values in ours.items()
    ]
    return markdown(["method", *(f"K = {k}" for k in EPOCHS), *(f"paper: K = {k}" for k in EPOCHS)], rows)


def local_epochs_at_1(out: Path) -> str:
    """Return the accuracy of both curve methods by local epochs with ϑ = 1, at the last evaluation."""
    found = compared_by_epochs(out, "-threshold-1")
    rows = [[m, *percent(row["last"]["mean"] for row in rows)] for m, rows in found.items()]
    return markdown(["method", *(f"K = {k}" for k in EPOCHS)], rows) if rows else ""


def compared_by_epochs(out: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """Return each method's numbers for every K, or nothing while some are missing."""
    files = [out / f"local-epochs-{epochs}{kind}" / "compare.json" for epochs in EPOCHS]
    if not all(file.exists() for file in files):
        return {}
    found = [json.loads(file.read_text())["methods"] for file in files]
    return {method: [methods[method] for methods in found] for method in found[0]}


def epochs_figure(lines: dict[str, list[float]]) -> Figure:
    rows = [
        {"method": method, "epochs": k, "accuracy": value}
        for method, values in lines.items()
        for k, value in zip(EPOCHS, values, strict=True)
    ]
    styles = series_encodings(list(lines))
    x = quantity("epochs", title="local epochs K", axis={"values": list(EPOCHS)})
    y = quantity("accuracy", title="test accuracy %", scale={"zero": False})
    lines = layer("line", {"x": x, "y": y, **pick(styles, "color", "strokeDash")})
    points = layer(
        "point", {"x": x, "y": y, **pick(styles, "color", "shape")}, filled=True, size=42, opacity=1
    )
    specification = {"data": {"name": "epochs"}, "height": 260, "layer": [lines, points]}
    caption = "femnist-mini, one seed."
    return Figure("local-epochs", "Accuracy by local epochs", caption, specification, {"epochs": rows})


def curved(out: Path, scenario: str) -> str:
    """Return each method's final score in the space that the model needs and in flat space."""
    columns, heads = [], []
    for space in (scenario, "flat"):
        name = f"{scenario}-{space}"
        if not (out / name / "compare.json").exists():
            return ""
        chosen = tomllib.loads((out / f"{name}-tune" / "tuned.toml").read_text())["methods"]
        compared = json.loads((out / name / "compare.json").read_text())["methods"]
        keep(out / name / "compare.json", f"curved/{name}.json")
        heads += ["η_g", f"{space} %"]
        columns.append(
            {m: [f"{chosen[m]['global_lr']:g}", spread(r["final"], 100.0, 1)] for m, r in compared.items()}
        )
    return markdown(["method", *heads], ([m, *columns[0][m], *columns[1][m]] for m in columns[0]))


def thresholds(out: Path) -> str:
    """Return both curve methods with ϑ = 0 and 1, over the seeds that are finished, and keep the numbers."""
    rows, kept = [], json.loads((HERE / "thresholds.json").read_text())
    for threshold in (0, 1):
        if files := sorted((out / f"threshold-{threshold}").glob("*/seed-*/summary.json")):
            kept[f"threshold-{threshold}"] = tabulate(json.loads(file.read_text()) for file in files)
        for method, row in kept[f"threshold-{threshold}"].items():
            scores = [spread(row[key], 100.0, 2) for key in ("final", "best")]
            reached = spread(row["rounds_to_target"], 1.0, 0, row["runs"])
            rows.append(
                [method, str(threshold), str(row["runs"]), *scores, reached, spread(row["gini"], 100.0, 2)]
            )
    (HERE / "thresholds.json").write_text(json.dumps(kept, indent=2) + "\n")
    heads = ["method", "ϑ", "seeds", "final %", "best %", "T_e", "Gini ×100"]
    return markdown(heads, sorted(rows))


def comparison(out: Path, name: str) -> str:
    """Return a comparison's scores, with the learning rates that a search chose for it, if there was one."""
    file = out / name / "compare.json"
    if not file.exists():
        return ""
    keep(file, f"{name}/compare.json")
    tuned = out / f"{name}-tune" / "tuned.toml"
    rates = tomllib.loads(tuned.read_text())["methods"] if tuned.exists() else {}
    rows = [
        [
            method,
            *([f"{rates[method]['global_lr']:g}"] if rates else []),
            spread(row["final"], 100.0, 2),
            spread(row["best"], 100.0, 2),
            spread(row["rounds_to_target"], 1.0, 0, row["runs"]),
            spread(row["gini"], 100.0, 2),
        ]
        for method, row in json.loads(file.read_text())["methods"].items()
    ]
    return markdown(["method", *(["η_g"] if rates else []), "final %", "best %", "T_e", "Gini ×100"], rows)


def long_jobs(out: Path) -> str:
    """Return the scores of the longer jobs, and keep the figure of how they came about."""
    table = comparison(out, "long-jobs")
    if table:
        keep(out / "long-jobs" / "figures" / "score-updates.svg", "long-jobs/score-updates.svg")
    return table


def uploads(out: Path) -> str:
    """Return bytes against score by task, method and codec, and the change from float32 seed by seed."""
    rows: list[list[str]] = []
    for task in ("digits", "femnist-mini"):
        made = {codec: summaries(out / f"uploads-{task}-{codec}") for codec in CODECS}
        for method, codec in product(("fedasync", "fedbuff", "asyncbezier"), CODECS):
            runs, plain = (made[each].get(method, {}) for each in (codec, "float32"))
            if not (runs and plain):
                continue
            sent, model = (mean(r[key] / r["updates"] for r in runs.values()) for key in TRAFFIC)
            changes = [runs[seed]["final"] - plain[seed]["final"] for seed in sorted({*runs} & {*plain})]
            final = spread(average(r["final"] for r in runs.values()), 100.0, 2)
            change = "–" if codec == "float32" else spread(average(changes), 100.0, 2)
            rows.append([task, method, codec, f"{sent:,.0f}", f"{sent / model:.2f}", final, change])
    heads = ["task", "method", "codec", "bytes per upload", "× model", "final %", "change, points"]
    return markdown(heads, rows) if rows else ""


def summaries(folder: Path) -> dict[str, dict[int, Any]]:
    """Return the summaries of a comparison's finished runs, by method and seed."""
    found: dict[str, dict[int, Any]] = {}
    for file in sorted(folder.glob("*/seed-*/summary.json")):
        summary = json.loads(file.read_text())
        found.setdefault(summary["method"], {})[summary["seed"]] = summary
    return found


def privacy(out: Path) -> str:
    """Return the score at each ε as a table, and draw it."""
    rows = read_privacy(out)
    if not rows:
        return ""
    (HERE / "privacy.svg").write_text(as_svg(privacy_figure(rows)))
    cells = [
        [
            row["method"],
            "–" if row["noise"] is None else f"{row['noise']:g}",
            "∞" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
            f"{row['final']:.2f}" + (f"±{stdev(row['scores']):.2f}" if len(row["scores"]) > 1 else ""),
        ]
        for row in rows
    ]
    return markdown(["method and protection", "σ", "ε", "final %"], cells)


def search(out: Path, scenario: str) -> str:
    """Return the validation scores of each candidate's models and of their means, best first; keep them.

    A score is the mean over the seeds that a candidate was run with.
    """
    found = out / f"search-{scenario}.jsonl"
    if not found.exists():
        return ""
    keep(found, f"compositions/{found.name}")
    runs: dict[str, list[dict[str, float]]] = {}
    for run in map(json.loads, found.read_text().splitlines()):
        runs.setdefault(run["candidate"], []).append(run["scores"])
    names = [name for name in next(iter(runs.values()))[0] if name != "last quarter"]
    scores = {
        candidate: [mean(run[name] for run in made) for name in names] for candidate, made in runs.items()
    }
    best = sorted(scores, key=lambda candidate: -max(scores[candidate]))
    rows = [[label(candidate, runs[candidate]), *percent(scores[candidate])] for candidate in best]
    return markdown(["candidate, η_g", *names], rows)


def label(candidate: str, made: list) -> str:
    return candidate if len(made) == 1 else f"{candidate} ({len(made)} seeds)"


def percent(values: Iterable[float], factor: float = 100.0) -> list[str]:
    return [f"{factor * value:.2f}" for value in values]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def filled(readme: str, name: str, table: str) -> str:
    """Return the text with the table between its marks."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: begin + table + end, readme)


def keep(source: Path, place: str) -> None:
    (HERE / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, HERE / place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
