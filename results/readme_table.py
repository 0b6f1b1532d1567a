"""The README's table of the demo: write it from build/demo, or check it against what the demo printed.

``results/readme_table.py write`` replaces the table between the marks, and ``check`` compares it number by
number. Portable arithmetic gives the same digits on every x86-64 processor with AVX2, so the tolerances allow
for rounding, and for another version of torch no more than its changes may move.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, TABLE = ROOT / "README.md", ROOT / "build" / "demo" / "table.md"
BEGIN, END = "<!-- table of make demo -->\n", "<!-- end of the table -->\n"
TOLERANCES = {
    "final %": 0.2,
    "last %": 0.5,
    "best %": 0.2,
    "target updates": 5.0,
    "target time": 1.0,
    "Gini ×100": 0.1,
    "Theil ×1000": 0.1,
}
"""How far each number, mean or deviation, may be from the demo's."""

Rows = dict[str, dict[str, str]]


def main(action: str) -> int:
    if not TABLE.exists():
        return _fail(f"{TABLE.relative_to(ROOT)} is missing: make demo")
    readme, table = README.read_text(encoding="utf-8"), TABLE.read_text(encoding="utf-8")
    table = table.split("\n\n")[0].rstrip("\n") + "\n"
    if action == "write":
        README.write_text(replaced(readme, table), encoding="utf-8")
        return 0
    if BEGIN not in readme:
        return _fail("README.md has no marks around its table: results/readme_table.py write")
    problems = differences(readme.split(BEGIN)[1].split(END)[0], table)
    if problems:
        return _fail("\n".join(["README.md differs from make demo:", *problems]))
    allowed = ", ".join(f"{heading} {tolerance:g}" for heading, tolerance in TOLERANCES.items())
    print(f"README.md agrees with make demo, within these tolerances: {allowed}")
    return 0


def replaced(readme: str, table: str) -> str:
    """Return the README with a new table, between marks, in place of its first one of methods."""
    old = rf"({BEGIN})?(\| method \| final[^\n]*\n(\|[^\n]*\n)+)({END})?"
    changed, count = re.subn(old, lambda _: BEGIN + table + END, readme, count=1)
    if not count:
        raise SystemExit("README.md has no table that begins with | method | final")
    return changed


def differences(written: str, printed: str) -> list[str]:
    """Return one line for every cell of two Markdown tables that is further apart than its tolerance."""
    one, other = read_table(written), read_table(printed)
    if list(one) != list(other):
        return [f"methods are {', '.join(one)}, must be {', '.join(other)}"]
    found = []
    for method, row in other.items():
        for heading, text in row.items():
            there = one[method].get(heading, "nothing")
            if not _is_near(there, text, TOLERANCES.get(heading, 0.0)):
                found.append(f"{method}, {heading}: {there} in README.md, {text} printed")
    return found


def read_table(text: str) -> Rows:
    """Return a Markdown table's cells by method and heading, without emphasis."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("*") for cell in line] for line in lines]
    headings, _, *rows = cells
    return {row[0]: dict(zip(headings[1:], row[1:], strict=True)) for row in rows}


def _is_near(one: str, other: str, tolerance: float) -> bool:
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", text) for text in (one, other)]
    forms = [re.sub(r"-?\d+(?:\.\d+)?", "N", text) for text in (one, other)]
    pairs = zip(*(map(float, found) for found in numbers), strict=False)
    return forms[0] == forms[1] and all(abs(a - b) <= tolerance + 1e-9 for a, b in pairs)


def _fail(line: str) -> int:
    print(line, file=sys.stderr)
    return 1


if __name__ == "__main__":
    if sys.argv[1:] not in (["write"], ["check"]):
        raise SystemExit("usage: results/readme_table.py write|check")
    sys.exit(main(sys.argv[1]))
