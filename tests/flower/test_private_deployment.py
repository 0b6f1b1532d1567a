"""Local privacy and a codec together on real SuperNodes, which keep ledgers and have the last word."""

from math import ceil, sqrt

import pytest

from asyncmanifold import LocalPrivacy
from asyncmanifold.configuration.config import load_config
from asyncmanifold.privacy.node_budget import read_ledger
from asyncmanifold.report import write_report
from asyncmanifold.vectors import FlatModel
from asyncmanifold.watch.followed_runs import FollowedRuns
from conftest import finish, trace

UPDATES = 6
PART = LocalPrivacy(clip_norm=0.5, noise_multiplier=8.0)
METHOD = """
embedding = { name = "bezier", degree = 2 }
correction = { name = "orthodc", threshold = 0.0 }
weighting = "none"
global_lr = 0.1
outgoing = [{ name = "local-privacy", clip_norm = 0.5, noise_multiplier = 8.0 }, "curve"]
"""


def test_nodes_protect_and_encode_their_uploads_until_one_has_spent_its_budget(federation, tmp_path):
    """The first node's ε allows two uploads, the second's any number; the server has no limit at all."""
    out, method = tmp_path / "run", tmp_path / "private.toml"
    method.write_text(METHOD)
    budgets = [(PART.epsilon(2) + PART.epsilon(3)) / 2, 1e6]
    ledgers = [tmp_path / f"ledger-{part}.json" for part in range(2)]
    for part, (epsilon, ledger) in enumerate(zip(budgets, ledgers, strict=True)):
        federation.start_node(
            partition_id=part, name=f"ward-{part}", privacy_epsilon=epsilon, privacy_ledger=str(ledger)
        )
    config = {"clients": 2, "num_updates": UPDATES, "queue_depth": 1, "method": str(method)}
    summary = finish(federation, federation.run(out=str(out), **config), out)

    assert (summary["updates"], summary["ended"]) == (UPDATES, "updates")
    updates, (refused,), (retired,) = (trace(out, kind) for kind in ("update", "failed", "retired"))
    assert refused["reason"].startswith(
        "this node's privacy budget is spent: 2 uploads, and one more would make"
    )
    assert (refused["name"], retired["client"]) == ("ward-0", refused["client"])
    made = {part: [record for record in updates if record["partition"] == part] for part in range(2)}
    assert [len(made[part]) for part in range(2)] == [2, UPDATES - 2]

    # What left the nodes: offsets in the curve codec's bytes and nothing else, as long as their noise is.
    size = FlatModel(load_config("digits").build_task().build_model(0)).size
    upload = 2 * size + 4 + size + 4 * ceil(size / 256) + 4
    assert {record["upload_bytes"] for record in updates} == {upload}
    assert {(record["loss"], record["examples"], record["train_seconds"]) for record in updates} == {
        (None, None, 0.0)
    }
    for record in updates:
        assert record["update_norm"] == pytest.approx(8.0 * 0.5 * sqrt(size), rel=5 / sqrt(2 * size))

    # Every account agrees: the trace's, the summary's, the page's, and each node's own.
    for records in made.values():
        for number, record in enumerate(records, start=1):  # its next job may have been sent, and counts
            assert record["releases"] in (number, number + 1)
            assert record["epsilon"] == PART.epsilon(record["releases"])
    spent = [2, summary["privacy"]["releases"][1 - refused["client"]]]
    assert spent[1] >= UPDATES - 2  # a job that was out at the end counts too
    privacy = summary["privacy"]
    by_part = [refused["client"], 1 - refused["client"]]
    assert [privacy["releases"][client] for client in by_part] == spent
    assert [privacy["epsilon_per_client"][client] for client in by_part] == list(map(PART.epsilon, spent))
    assert privacy["retired"] == [refused["client"]]
    assert read_ledger(ledgers[0]) == {8.0: 2}
    assert read_ledger(ledgers[1])[8.0] in (UPDATES - 2, UPDATES - 1)
    rows = {row["name"]: row for row in FollowedRuns(out).state(None)["chosen"]["clients"]}
    for part, (is_retired, records) in enumerate(zip((True, False), made.values(), strict=True)):
        row = rows[f"ward-{part}"]
        assert (row["epsilon"], row["is_retired"]) == (max(r["epsilon"] for r in records), is_retired)
    assert f"<td>{privacy['epsilon']:.3g}</td>" in write_report(out).read_text()
    assert summary["per_client"] is None  # nobody is asked for scores on private data
