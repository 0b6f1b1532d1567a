"""Speeches prepared from LEAF's windows, Hugging Face's, texts of plays and .jsonl files."""

import csv
import gzip
import json
from itertools import chain

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from asyncmanifold.sources import prepare
from asyncmanifold.sources.windows import join_windows, play_and_speaker
from asyncmanifold.tasks.shakespeare import Shakespeare

RANDOM = np.random.default_rng(3)
LEAR, KENT = ("".join(RANDOM.choice(list("abcdefgh ijk"), 400)).strip() for _ in range(2))


def windows(text: str) -> list[tuple[str, str]]:
    return [(text[n : n + 80], text[n + 80]) for n in range(len(text) - 80)]


def leaf(groups=None, **users) -> dict:
    data = {user: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for user, pairs in users.items()}
    content = {"users": list(data), "num_samples": [0 for _ in data], "user_data": data}
    return content | ({} if groups is None else {"hierarchies": groups})


def write(path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def prepared(source, tmp_path, name="out.jsonl"):
    words = prepare("shakespeare", str(source), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).decode().splitlines()
    return words, [json.loads(line) for line in lines]


def refusal(source, tmp_path, out="out.jsonl") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the text
        prepare("shakespeare", str(source), tmp_path / out)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    return str(caught.value)


def speech(play, speaker, *lines):
    return {"play": play, "speaker": speaker, "lines": list(lines)}


# Windows


def test_windows_are_joined_where_they_overlap_by_half():
    assert list(join_windows(windows(LEAR))) == [LEAR]
    assert list(join_windows(chain(windows(LEAR), windows(KENT)))) == [LEAR, KENT]
    dropped = [pair for n, pair in enumerate(windows(LEAR)) if n % 7 < 3 or n == 319]
    assert list(join_windows(dropped)) == [LEAR]
    apart = windows(LEAR)[:10] + windows(LEAR)[50:]
    assert list(join_windows(apart)) == [LEAR[:90], LEAR[50:]]
    assert list(join_windows(windows(LEAR)[:10] + windows(LEAR)[49:])) == [LEAR]
    assert list(join_windows([])) == []


@pytest.mark.parametrize(
    ("user", "plays", "expected"),
    [
        (
            "THE_TRAGEDY_OF_KING_LEAR_KENT",
            ["Lear", "The Tragedy of King Lear"],
            ("The Tragedy of King Lear", "KENT"),
        ),
        ("THE_TRAGEDY_OF_KING_LEAR_KENT", [], ("THE TRAGEDY OF KING LEAR", "KENT")),
        ("PERICLES__PRINCE_OF_TYRE_FIRST_MURDERER", [], ("PERICLES PRINCE OF TYRE", "FIRST MURDERER")),
        ("SECOND_PART_OF_KING_HENRY_IV_FALSTAFF", [], ("SECOND PART OF KING HENRY IV", "FALSTAFF")),
        ("KING_RICHARD_THE_SECOND_KING_RICHARD", [], ("KING RICHARD THE SECOND", "KING RICHARD")),
        ("ALL_S_WELL_THAT_ENDS_WELL_ALL", [], ("ALL S WELL THAT ENDS WELL", "ALL")),
        ("somebody", ["A play"], ("A play", "SOMEBODY")),
    ],
)
def test_a_users_name_is_play_and_speaker(user, plays, expected):
    assert play_and_speaker(user, plays, "here") == expected


# LEAF


def test_leafs_users_become_speakers(tmp_path):
    groups = ["King Lear", "King Lear"]
    users = {"KING_LEAR_LEAR": windows(LEAR), "KING_LEAR_KENT": windows(KENT)[:9] + windows(KENT)[200:]}
    write(tmp_path / "in/all_data.json", leaf(groups, **users))
    words, speeches = prepared(tmp_path / "in", tmp_path)
    assert words == "shakespeare: 3 speeches, 2 speakers, 1 plays"
    assert speeches == [
        speech("King Lear", "LEAR", LEAR),
        speech("King Lear", "KENT", KENT[:89].strip()),
        speech("King Lear", "KENT", KENT[200:].strip()),
    ]


def test_an_older_leaf_pads_every_line(tmp_path):
    pairs = [*windows(" " * 80 + "Nothing, my lord.\n"), *windows(" " * 80 + "Nothing.\n")]
    write(tmp_path / "in.json", leaf(["King Lear"], KING_LEAR_CORDELIA=pairs))
    _, speeches = prepared(tmp_path / "in.json", tmp_path)
    assert [entry["lines"] for entry in speeches] == [["Nothing, my lord."], ["Nothing."]]


@pytest.mark.parametrize("split", ["random", "in order"])
def test_train_and_test_files_give_each_text_once(tmp_path, split):
    pairs = windows(LEAR)
    chosen = [n % 10 == 5 if split == "random" else n >= 200 + 79 for n in range(len(pairs))]
    train = [pair for pair, test in zip(pairs, chosen, strict=True) if not test]
    if split == "in order":
        train = pairs[:200]
    test = [pair for pair, test in zip(pairs, chosen, strict=True) if test]
    # As in LEAF's own files, there are more groups than users: then the names say which play it is.
    write(tmp_path / "in/data/train/a.json", leaf(["King Lear", "Macbeth"], KING_LEAR_LEAR=train))
    write(tmp_path / "in/data/test/a.json", leaf(["King Lear", "Macbeth"], KING_LEAR_LEAR=test))
    _, speeches = prepared(tmp_path / "in", tmp_path)
    found = [entry["lines"][0] for entry in speeches]
    assert {entry["play"] for entry in speeches} == {"King Lear"}
    assert found == [LEAR] if split == "random" else [LEAR[:280].strip(), LEAR[279:].strip()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"users": [', ", line 1, column 12: not JSON, or cut off: Expecting value"),
        (leaf(["P"], u=[("short", "a")]), ", user 'u', window 0: x is 5 characters, must be 80 characters"),
        (leaf(["P"], u=[(7, "a")]), ", user 'u', window 0: x is not a string, must be 80 characters"),
        (leaf(["P"], u=[("a" * 80, "ab")]), ", user 'u', window 0: y is 'ab', must be one character"),
        (leaf(u=windows(LEAR)), ", user 'u': this name does not begin with the title of a known play"),
        (leaf(["P"], u=[]), ": no speeches"),
        (leaf([1], u=[]), ": 'hierarchies' must be strings"),
    ],
)
def test_wrong_leaf_files_are_one_line(tmp_path, content, expected):
    write(tmp_path / "in.json", content)
    assert refusal(tmp_path / "in.json", tmp_path) == f"{tmp_path}/in.json{expected}"


# Hugging Face


def table_rows() -> list[dict]:
    users = {"KING_LEAR_LEAR": LEAR, "MACBETH_ROSS": KENT}
    return [{"character_id": user, "x": x, "y": y} for user, text in users.items() for x, y in windows(text)]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_are_read_user_by_user(tmp_path, suffix):
    if suffix == "csv":
        write_csv(tmp_path / "in.csv", table_rows())
    else:
        parquet.write_table(pyarrow.Table.from_pylist(table_rows()), tmp_path / "in.parquet")
    words, speeches = prepared(tmp_path / f"in.{suffix}", tmp_path)
    assert words == "shakespeare: 2 speeches, 2 speakers, 2 plays"
    assert speeches == [speech("KING LEAR", "LEAR", LEAR), speech("MACBETH", "ROSS", KENT)]


def test_wrong_tables_are_one_line(tmp_path):
    path = tmp_path / "in.csv"
    write_csv(path, [{"x": "a", "y": "b"}])
    assert refusal(path, tmp_path) == f"{path}: no column 'character_id' (there are: x, y)"
    write_csv(path, [*table_rows()[:3], {"character_id": "KING_LEAR_LEAR", "x": "a", "y": "b"}])
    assert refusal(path, tmp_path) == f"{path}, row 3: x is 1 characters, must be 80 characters"
    write_csv(path, [{"character_id": "nobody", "x": "a" * 80, "y": "b"}])
    assert refusal(path, tmp_path) == (
        f"{path}, row 0, character_id 'nobody': this name does not begin with the title of a known play"
    )
    path.write_bytes(b"character_id,x,y\n\xff\n")
    assert refusal(path, tmp_path).startswith(f"{path}: not a .csv file, or cut off: ")


# Texts of plays

TAB = """\
KING LEAR
DRAMATIS PERSONAE
LEAR\tking of Britain.
ACT I
SCENE I\tKing Lear's palace.
\t[Enter KENT and
\tGLOUCESTER]
KENT\tI thought the king
\thad more affected the Duke.
First Servant\t[Aside]
\tIt did always seem so.
\t[Exeunt]
"""
PERIOD = """\
ACT I. SCENE I.
Enter KENT and GLOUCESTER
  KENT. I thought the king [Aside] had more
    affected the Duke.
                       Exit
  FIRST SERVANT. It did always seem so.
THE END
Not spoken.
"""
ALONE = """\
Scene 1
KENT
I thought the king.
I

FIRST SERVANT.
It did always seem so.
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TAB,
            [
                ("KENT", "I thought the king", "had more affected the Duke."),
                ("First Servant", "It did always seem so."),
            ],
        ),
        (
            PERIOD,
            [
                ("KENT", "I thought the king  had more", "affected the Duke."),
                ("FIRST SERVANT", "It did always seem so."),
            ],
        ),
        (ALONE, [("KENT", "I thought the king.", "I"), ("FIRST SERVANT", "It did always seem so.")]),
    ],
    ids=["tab", "period", "alone"],
)
def test_layouts_of_plays(tmp_path, text, expected):
    write(tmp_path / "in/King Lear.txt", text)
    _, speeches = prepared(tmp_path / "in", tmp_path)
    assert speeches == [speech("King Lear", *entry) for entry in expected]


def test_texts_that_are_no_plays_are_one_line(tmp_path):
    path = tmp_path / "in/a.txt"
    write(path, "Shall I compare thee to a summer's day?\n")
    assert refusal(tmp_path / "in", tmp_path).startswith(f"{path}: no speeches; expected a speaker ")
    path.write_bytes(b"KENT. \xff")
    assert refusal(tmp_path / "in", tmp_path) == f"{path}: not UTF-8 text (byte 6)"


# .jsonl files


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_speeches_are_rewritten_as_they_are_and_trained_on(tmp_path, name):
    entries = [speech(play, "FOOL", LEAR, "é") | {"file": "x"} for play in ("King Lear", "Macbeth")]
    write(tmp_path / "in.jsonl", "\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    words, speeches = prepared(tmp_path / "in.jsonl", tmp_path, name)
    assert words == "shakespeare: 2 speeches, 2 speakers, 2 plays"
    assert speeches == entries
    content = (tmp_path / name).read_bytes()
    prepared(tmp_path / name, tmp_path, name)
    assert (tmp_path / name).read_bytes() == content
    task = Shakespeare(data=str(tmp_path / name), clients=2, context=8, layers=1, heads=2, width=8).build(0)
    assert len(task.clients) == 2


def test_wrong_speeches_are_one_line(tmp_path):
    path = tmp_path / "in.jsonl"
    write(path, '{"play": "P", "speaker": "S"}\n')
    assert refusal(path, tmp_path) == f"{path}, line 1: no 'lines'"
    write(path, "")
    assert refusal(path, tmp_path) == f"{path}: no speeches"


def test_what_is_not_understood_is_one_line_that_lists_what_is(tmp_path):
    (tmp_path / "in").mkdir()
    message = refusal(tmp_path / "in", tmp_path)
    assert message.startswith(f"{tmp_path}/in: expected LEAF's folder or .json file, flwrlabs/shakespeare ")
    assert refusal("none", tmp_path, "out.txt") == f"{tmp_path}/out.txt: must end in .jsonl or .jsonl.gz"
