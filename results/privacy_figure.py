"""The price of privacy on the digits: score against ε, from the step ``privacy`` of results/run.sh."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

from asyncmanifold.report.figure import Figure, layer, quantity
from asyncmanifold.report.score_layers import pick, series_encodings

SERIES = {"fedbuff": "FedBuff, trusted server", "asyncbezier": "AsyncBezier, noise at the client"}


def read_privacy(out: Path) -> list[dict[str, Any]]:
    """Return one row for each setting: means over seeds of ε, which is None without noise, and of scores."""
    rows = []
    for folder in sorted((out / "privacy").iterdir()) if (out / "privacy").is_dir() else ():
        files = sorted(folder.glob("seed-*/summary.json"))
        if not files:
            continue
        summaries = [json.loads(file.read_text()) for file in files]
        private = [summary["privacy"] for summary in summaries if "privacy" in summary]
        rows.append(
            {
                "method": SERIES[folder.name.split("-")[0]],
                "noise": private[0]["noise_multiplier"] if private else None,
                "epsilon": mean(entry["epsilon"] for entry in private) if private else None,
                "final": 100.0 * mean(summary["final"] for summary in summaries),
                "scores": [100.0 * summary["final"] for summary in summaries],
            }
        )
    return sorted(rows, key=lambda row: (row["method"], -(row["epsilon"] or float("inf"))))


def privacy_figure(rows: list[dict[str, Any]]) -> Figure:
    """Return score against ε, with a dashed line for each method without noise."""
    drawn = [
        {"method": row["method"], "epsilon": row["epsilon"], "final": row["final"]}
        for row in rows
        if row["epsilon"] is not None
    ]
    plain = [{"method": row["method"], "final": row["final"]} for row in rows if row["epsilon"] is None]
    styles = series_encodings(list(SERIES.values()))
    x = quantity("epsilon", title="ε at δ = 1e-5, one client replaced", scale={"type": "log"})
    y = quantity("final", title="test accuracy %", scale={"domain": [0, 100]})
    lines = layer("line", {"x": x, "y": y, **pick(styles, "color")})
    places = {"x": x, "y": y, **pick(styles, "color", "shape")}
    points = layer("point", places, filled=True, size=42, opacity=1)
    rules = layer("rule", {"y": y, **pick(styles, "color")}, "plain", strokeDash=[4, 4])
    specification = {"data": {"name": "private"}, "height": 260, "layer": [lines, points, rules]}
    caption = "Digits, 15 clients; dashed: without noise."
    return Figure("privacy", "Score against ε", caption, specification, {"private": drawn, "plain": plain})
