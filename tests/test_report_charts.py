"""A chart of scores for notebooks: the numbers of the traces, drawn from the range where methods differ."""

import sys

import pytest

from asyncmanifold.errors import InputError
from asyncmanifold.report import drawing_library
from asyncmanifold.report.charts import score_chart
from asyncmanifold.report.score_layers import Scores, useful_range, whole_range


def trace(*scores):
    """Return a made-up trace: an evaluation after every tenth update, and an update between."""
    records = []
    for place, score in enumerate(scores):
        records.append({"kind": "update", "update": 10 * place, "time": 2.0 * place})
        record = {"kind": "evaluation", "update": 10 * place, "version": 0, "time": 2.0 * place, "f1": score}
        records.append(record | {"loss": 9.0})
    return records


@pytest.fixture(scope="module")
def chart():
    runs = {"one": [trace(0.1, 0.6), trace(0.1, 0.8)], "other": [trace(0.1, None, 0.5)]}
    return score_chart(runs, target=0.9, against="time").to_dict()


def test_the_chart_holds_means_bands_and_evaluations(chart):
    data = chart["datasets"]
    assert [(row["method"], row["x"], row["y"]) for row in data["means-time"]] == [
        *(("one", 0.0, 0.1), ("one", 2.0, 0.7)),
        *(("other", 0.0, 0.1), ("other", 4.0, 0.5)),
    ]
    assert data["means-time"][1]["low"] == pytest.approx(0.7 - 0.02**0.5, abs=1e-6)
    assert "low" not in data["means-time"][2]
    seeds = [(row["method"], row["seed"], row["update"], row["score"]) for row in data["scores"]]
    assert seeds == [
        *(("one", 0, 0, 0.1), ("one", 0, 10, 0.6), ("one", 1, 0, 0.1), ("one", 1, 10, 0.8)),
        *(("other", 0, 0, 0.1), ("other", 0, 20, 0.5)),
    ]
    assert data["targets"] == [{"target": 0.9, "label": "target 90 %"}]
    titles = {layer["encoding"]["y"].get("title") for layer in chart["layer"]}
    assert "f1" in titles


def test_only_evaluations_have_tooltips(chart):
    assert [layer["data"]["name"] for layer in chart["layer"] if "tooltip" in layer["encoding"]] == ["scores"]


def test_the_view_starts_where_methods_differ():
    def scores(*values, targets=()):
        return Scores([{"score": value} for value in values], [], "score", list(targets))

    late = scores(0.1, 0.8, 0.8, 0.9)
    assert useful_range(late) == pytest.approx((0.795, 0.905))
    assert whole_range(late) == pytest.approx((0.06, 0.94))
    assert useful_range(scores(0.1, 0.8, 0.8, 0.9, targets=[0.75])) == pytest.approx((0.7425, 0.9075))
    assert useful_range(scores(0.6, 0.65, 0.8, 0.9)) == whole_range(scores(0.6, 0.65, 0.8, 0.9))
    assert useful_range(scores(0.5)) == pytest.approx((0.475, 0.525))
    far = scores(0.1, 0.8, 0.8, 0.9, targets=[1.31])  # scores span 0.8: up to 0.4 away is near
    assert useful_range(far) == useful_range(late)
    assert whole_range(far) == pytest.approx((0.0395, 1.3705))
    assert useful_range(scores(0.6, 0.65, 0.8, 0.9, targets=[2])) == whole_range(scores(0.6, 0.65, 0.8, 0.9))


@pytest.mark.parametrize(
    ("runs", "options", "words"),
    [
        ({}, {}, "the traces have no evaluation"),
        ({"one": [trace(0.5)]}, {"metric": "recall"}, "the traces have no evaluation of recall"),
        ({"one": [trace(0.5)]}, {"against": "epoch"}, "against='epoch': must be one of update, time"),
    ],
)
def test_a_chart_of_nothing_is_one_line(runs, options, words):
    with pytest.raises(InputError, match=words):
        score_chart(runs, **options)


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    drawing_library._library.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'asyncmanifold\[report\]' \(altair is missing\)"):
        score_chart({"one": [trace(0.5)]})
