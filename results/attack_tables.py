"""The tables of attacks and gates, from what results/run.sh made in its step ``attacks``."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
METHODS = ("fedasync", "asyncsgd", "asyncbezier")


def attack_tables(out: Path) -> dict[str, list[list[str]]]:
    """Return, by method, a row for each attack: the final score, and the share of hostile updates let in.

    The first row holds the gates. Runs are added to those of attacks/attacks.json, a few at a time.
    """
    file = HERE / "attacks" / "attacks.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    made = {folder.name: read_attack(folder) for folder in sorted((out / "attacks").glob("*"))}
    if not made:
        return {}
    for attack, methods in made.items():
        for method, gates in methods.items():
            kept.setdefault(attack, {}).setdefault(method, {}).update(gates)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    attacks = sorted(kept, key=lambda attack: (attack != "none", attack))
    tables = {}
    for method in METHODS:
        gates = sorted({gate for attack in attacks for gate in kept[attack].get(method, {})})
        rows = [
            [attack, *(cell(kept[attack].get(method, {}).get(gate)) for gate in gates)] for attack in attacks
        ]
        tables[method] = [["attack", *gates], *rows]
    return tables


def read_attack(folder: Path) -> dict[str, dict[str, Any]]:
    """Return means over seeds of one attack's runs, by method and gate."""
    found: dict[str, dict[str, Any]] = {}
    for directory in sorted(folder.glob("*.*")):
        summaries = [json.loads(file.read_text()) for file in sorted(directory.glob("seed-*/summary.json"))]
        if not summaries or "." not in directory.name:
            continue
        method, gate = directory.name.split(".", 1)
        names = ("final", "hostile_admitted", "honest_admitted")
        entry: dict[str, Any] = {"seeds": len(summaries)}
        for name in names:
            known = [summary[name] for summary in summaries if summary[name] is not None]
            entry[name] = round(mean(known), 4) if known else None
        found.setdefault(method, {})[gate] = entry
    return found


def cell(entry: dict[str, Any] | None) -> str:
    """Return a score in percent and, in brackets, the share of hostile updates let in."""
    if entry is None or entry["final"] is None:
        return "–"
    admitted = entry["hostile_admitted"]
    return f"{100 * entry['final']:.0f}" + ("" if admitted is None else f" ({100 * admitted:.0f})")
