"""The check of the README's table against what the demo printed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
from readme_table import BEGIN, END, differences, replaced

PRINTED = """\
| method | final % | target updates | Gini ×100 |
| --- | --: | --: | --: |
| fedasync | 86.2±1.3 | 235±35 | 5.16±1.59 |
| asyncsgd | **92.8±2.0** | 175 (1/2) | – |
"""


def test_equal_tables_and_rounding_pass():
    assert differences(PRINTED, PRINTED) == []
    assert differences(PRINTED.replace("86.2", "86.4").replace("235", "230"), PRINTED) == []
    assert differences(PRINTED.replace("**", ""), PRINTED) == []


def test_what_is_further_apart_is_named():
    assert differences(PRINTED.replace("86.2", "86.5"), PRINTED) == [
        "fedasync, final %: 86.5±1.3 in README.md, 86.2±1.3 printed"
    ]
    assert differences(PRINTED.replace("| – |", "| 0.10 |"), PRINTED) == [
        "asyncsgd, Gini ×100: 0.10 in README.md, – printed"
    ]
    assert "methods are" in differences(PRINTED.replace("asyncsgd", "other"), PRINTED)[0]


def test_the_table_is_written_between_marks_once_and_again():
    readme = "before\n\n| method | final % |\n| --- | --: |\n| old | 1 |\n\nafter\n"
    once = replaced(readme, PRINTED)
    assert once == f"before\n\n{BEGIN}{PRINTED}{END}\nafter\n"
    assert replaced(once, PRINTED.replace("86.2", "87.0")) == once.replace("86.2", "87.0")
