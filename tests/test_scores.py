"""What a score is: the mean of the last evaluations, and the best only beyond the spread over seeds."""

import pytest
from rich.table import Table

from asyncmanifold import InputError, Run
from asyncmanifold.commands.printing import print_study
from asyncmanifold.report.comparison import COLUMNS, Column, average, cell
from asyncmanifold.session.summary import summarise

ACCURACY = next(column for column in COLUMNS if column.key == "final")
TIME = next(column for column in COLUMNS if column.key == "time_to_target")


def summary_of(scores: list[float | None], final_evaluations: int = 5) -> dict:
    trace = [
        {"kind": "evaluation", "update": 10 * n, "version": n, "time": 1.0 * n, "accuracy": s, "loss": 1.0}
        for n, s in enumerate(scores)
    ]
    settings = {"target": None, "per_client": None, "validation": None}
    return summarise(trace, metrics=["accuracy"], final_evaluations=final_evaluations, **settings)


def test_final_is_the_mean_of_the_last_evaluations_and_last_the_very_last():
    summary = summary_of([0.0, 0.1, 0.5, 0.6, 0.7, 0.8, 0.4])
    assert summary["final"] == pytest.approx(0.6)  # (0.5 + 0.6 + 0.7 + 0.8 + 0.4) / 5
    assert summary["last"] == 0.4
    assert summary["best"] == 0.8
    assert summary["scores"] == {"accuracy": pytest.approx(0.6)}
    assert summary_of([0.0, 0.1, 0.5, 0.6, 0.7, 0.8, 0.4], 2)["final"] == pytest.approx(0.6)
    assert summary_of([0.0, 0.1, 0.5], 1)["final"] == 0.5


def test_the_untrained_model_does_not_count():
    assert summary_of([0.1, 0.5, 0.7])["final"] == pytest.approx(0.6)
    assert summary_of([0.1])["final"] == 0.1  # unless there is no other
    assert summary_of([])["final"] is None


def test_a_diverged_run_has_no_final_score():
    assert summary_of([0.1, 0.8, 0.9, None])["final"] is None
    assert summary_of([None, 0.8, 0.9])["final"] == pytest.approx(0.85)


def test_at_least_one_evaluation_counts():
    with pytest.raises(InputError, match="final_evaluations=0"):
        Run(final_evaluations=0)


def marked(column: Column, *runs: list[float | None]) -> list[bool]:
    table = {str(n): {column.key: average(scores), "runs": len(scores)} for n, scores in enumerate(runs)}
    return [cell(column, row, "**{}**", table).startswith("**") for row in table.values()]


def test_the_best_is_marked_only_outside_the_spread():
    # 0.9 ± 0.0141 and 0.86 ± 0.0141: 0.04 apart, the deviations are 0.028 together.
    assert marked(ACCURACY, [0.89, 0.91], [0.85, 0.87]) == [True, False]
    # 0.9 ± 0.0141 and 0.88 ± 0.0141: 0.02 apart.
    assert marked(ACCURACY, [0.89, 0.91], [0.87, 0.89]) == [False, False]
    assert marked(TIME, [10.0, 12.0], [20.0, 22.0]) == [True, False]  # the least time is the best
    assert marked(TIME, [10.0, 12.0], [12.0, 14.0]) == [False, False]


def test_what_cannot_be_the_best():
    assert marked(ACCURACY, [0.9], [0.1]) == [False, False]  # one seed: the spread is unknown
    assert marked(ACCURACY, [0.89, 0.91]) == [False]  # of one method
    assert marked(TIME, [10.0, None], [20.0, 22.0]) == [False, False]  # one seed never came there
    assert marked(TIME, [10.0, 11.0], [None, None]) == [True, False]


@pytest.mark.parametrize(("width", "shown"), [(33, ["84.1±1.6"]), (34, ["84.1±1.6", "88.6±1.6"])])
def test_a_narrow_terminal_shows_fewer_columns_and_cuts_no_number(monkeypatch, capsys, width, shown):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_study(scores_of_a_study(), ["a note"])
    printed = capsys.readouterr().out
    assert [text for text in ("84.1±1.6", "88.6±1.6") if text in printed] == shown
    assert "…" not in printed
    assert ("this terminal is too narrow for: the best" in printed) == (len(shown) == 1)
    assert printed.endswith("a note\n")


def test_what_is_no_terminal_gets_every_column(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "23")
    print_study(scores_of_a_study(), [])
    printed = capsys.readouterr().out
    assert "84.1±1.6" in printed
    assert "88.6±1.6" in printed


def scores_of_a_study() -> Table:
    table = Table("method", title="digits")
    for heading in ("final", "the\nbest"):
        table.add_column(heading, no_wrap=True)
    table.add_row("fedasync", "84.1±1.6", "88.6±1.6")
    return table
