"""Plays, speakers and windows of text; the transformer that reads them."""

import gzip
import json
import pickle

import numpy as np
import pytest
import torch

from asyncmanifold import LocalTraining, Run, simulate
from asyncmanifold.tasks.shakespeare import (
    LastPositionAccuracy,
    Shakespeare,
    deal_plays,
    every_position_loss,
    read_corpus,
)
from asyncmanifold.tasks.transformer import CharacterTransformer
from asyncmanifold.vectors import FlatModel

PLAYS = 5
SPEAKERS = ("KING", "FOOL")
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDE"
CONTEXT = 8
SMALL = {"context": CONTEXT, "layers": 1, "heads": 2, "width": 8}


def write(path, entries):
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


@pytest.fixture(name="entries", scope="module")
def make_entries():
    """Speeches of random letters, the speakers of a play in turn; play and speaker can be told apart."""
    random = np.random.default_rng(5)
    return [
        {"play": f"Play {play}", "file": "x.xml", "speaker": speaker, "lines": lines}
        for play in range(PLAYS)
        for _ in range(6)
        for speaker in SPEAKERS
        for lines in [["".join(random.choice(list(LETTERS), 20)) for _ in range(2)]]
    ]


@pytest.fixture(name="path", scope="module")
def make_path(entries, tmp_path_factory):
    return write(tmp_path_factory.mktemp("plays") / "speeches.jsonl.gz", entries)


def texts_of(entries):
    """The text of each (play, speaker), joined the obvious way."""
    texts = {}
    for entry in entries:
        texts.setdefault((entry["play"], entry["speaker"]), []).append("\n".join(entry["lines"]))
    return {key: "\n".join(speeches) for key, speeches in texts.items()}


def windows_of(data, corpus):
    inputs, targets = data.batch(torch.arange(len(data)))
    return [corpus.decode(i) + corpus.decode(t)[-1] for i, t in zip(inputs, targets, strict=True)]


def cut(text, settings):
    """A text in its three pieces, by the definition."""
    test, validation = (int(len(text) * f) for f in (settings.test_fraction, settings.validation_fraction))
    middle = len(text) - test - validation
    return text[:middle], text[middle : middle + validation], text[middle + validation :]


def sliding(text, stride=1):
    return [text[i : i + CONTEXT + 1] for i in range(0, len(text) - CONTEXT, stride)]


def all_windows(datas, corpus):
    return sorted(window for data in datas for window in windows_of(data, corpus))


@pytest.mark.parametrize("stride", [1, 3])
def test_every_window_is_used_exactly_once_and_lies_in_one_piece_of_one_speaker(entries, path, stride):
    settings = Shakespeare(data=path, clients=3, stride=stride, max_test=None, **SMALL)
    task, corpus = settings.build(0), read_corpus(path)
    pieces = zip(*(cut(text, settings) for text in texts_of(entries).values()), strict=True)
    expected = [sorted(w for piece in part for w in sliding(piece, stride)) for part in pieces]
    assert all(len(windows) > PLAYS for windows in expected)
    found = [all_windows(datas, corpus) for datas in (task.clients, task.validation, [task.test])]
    assert found == expected


def test_training_validation_and_test_have_no_character_in_common(path):
    settings = Shakespeare(data=path, **SMALL)
    for spans in read_corpus(path).plays.values():
        pieces = settings.windows(spans)
        covered = [{s + i for s in piece.tolist() for i in range(CONTEXT + 1)} for piece in pieces]
        train, validation, test = covered
        assert min(map(len, covered)) > CONTEXT
        assert len(train | validation | test) == sum(map(len, covered))
        for first, end in spans:
            parts = [sorted(c for c in part if first <= c < end) for part in covered]
            assert parts[0][-1] < parts[1][0]
            assert parts[1][-1] < parts[2][0]


def test_a_held_out_piece_too_short_for_a_window_is_trained_on():
    settings = Shakespeare(context=8, test_fraction=0.1, validation_fraction=0.09)
    train, validation, test = settings.windows([(100, 190)])
    assert test.tolist() == [181]
    assert len(validation) == 0
    assert train.tolist() == list(range(100, 173)), "9 of 90 characters are held out, 8 are not"
    assert settings.windows([(0, 9), (9, 17)]).train.tolist() == [0]


def test_inputs_are_the_context_and_targets_the_next_character(path):
    task, corpus = Shakespeare(data=path, clients=2, **SMALL).build(0), read_corpus(path)
    inputs, targets = task.clients[0].batch(torch.tensor([3, 0, 3]))
    assert inputs.shape == targets.shape == (3, CONTEXT)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs[0], inputs[2])
    copy = pickle.loads(pickle.dumps(task)).clients[0]
    assert windows_of(copy, corpus) == windows_of(task.clients[0], corpus)


def owners_of(task, entries, corpus):
    """The plays that each client's training windows come from."""
    play_of = {window: play for (play, _), text in texts_of(entries).items() for window in sliding(text)}
    return [{play_of[window] for window in windows_of(data, corpus)} for data in task.clients]


@pytest.mark.parametrize("clients", [1, 2, 4, PLAYS])
def test_a_play_is_one_clients_whole(entries, path, clients):
    task, corpus = Shakespeare(data=path, clients=clients, **SMALL).build(2), read_corpus(path)
    owned = owners_of(task, entries, corpus)
    assert sorted(play for plays in owned for play in plays) == [f"Play {i}" for i in range(PLAYS)]
    held_out = [windows_of(data, corpus) for data in task.validation]
    for plays, windows in zip(owned, held_out, strict=True):
        texts = [text for (play, _), text in texts_of(entries).items() if play in plays]
        assert all(any(window in text for text in texts) for window in windows)


def test_second_plays_go_to_different_clients_at_random():
    hands = [deal_plays(37, 30, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert hands[0] == hands[1] != hands[2]
    for dealt in hands:
        assert sorted(len(hand) for hand in dealt) == [1] * 23 + [2] * 7
        assert sorted(play for hand in dealt for play in hand) == list(range(37))
    seconds = [{c for c, hand in enumerate(dealt) if len(hand) == 2} for dealt in hands]
    assert seconds[0] != seconds[2]
    assert sorted(len(hand) for hand in deal_plays(7, 3, np.random.default_rng(0))) == [2, 2, 3]


def test_the_same_seed_gives_the_same_windows(path):
    settings = Shakespeare(data=path, clients=3, max_windows=20, max_test=15, **SMALL)
    corpus = read_corpus(path)
    one, two, other = (
        [windows_of(data, corpus) for data in (*task.clients, *task.validation, task.test)]
        for task in (settings.build(seed) for seed in (3, 3, 4))
    )
    assert one == two
    assert one != other


def test_subsets_are_drawn_without_repetition(path):
    corpus = read_corpus(path)
    whole = Shakespeare(data=path, clients=3, max_test=None, **SMALL).build(0)
    task = Shakespeare(data=path, clients=3, max_windows=20, max_test=15, **SMALL).build(0)
    assert [len(data) for data in task.clients] == [20, 20, 20]
    assert [len(data) for data in task.validation] == [5, 5, 5]
    assert len(task.test) == 15
    for some, every in [*zip(task.clients, whole.clients, strict=True), (task.test, whole.test)]:
        chosen = windows_of(some, corpus)
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(windows_of(every, corpus))
    fewer = Shakespeare(data=path, clients=3, max_windows=10, max_test=15, **SMALL).build(0)
    assert windows_of(fewer.test, corpus) == windows_of(task.test, corpus)


def test_vocabulary_round_trip(tmp_path):
    entries = [
        {"play": "Ü", "speaker": "B", "lines": ["zé\ud800", "a"]},
        {"play": "Ü", "speaker": "A", "lines": ["😀"]},
        {"play": "Ü", "speaker": "B", "lines": ["again"]},
    ]
    corpus = read_corpus(write(tmp_path / "x.jsonl", entries))
    assert corpus.text.dtype == torch.uint8
    assert corpus.vocabulary == "\naginzé\ud800😀"
    assert corpus.decode(corpus.text) == "zé\ud800\na\nagain😀"
    assert corpus.plays == {"Ü": [(0, 11), (11, 12)]}


def test_a_file_may_be_plain_or_compressed_and_have_empty_lines(entries, path, tmp_path):
    plain = tmp_path / "speeches.jsonl"
    plain.write_text("\n\n".join(json.dumps(entry) for entry in entries))
    one, two = read_corpus(str(plain)), read_corpus(path)
    assert torch.equal(one.text, two.text)
    assert (one.vocabulary, one.plays) == (two.vocabulary, two.plays)


GOOD = json.dumps({"play": "P", "speaker": "S", "lines": ["text"]})


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("no.jsonl", None, ": No such file or directory"),
        ("plain.jsonl.gz", GOOD.encode(), ", line 1: not a complete gzip file"),
        (
            "short.jsonl.gz",
            gzip.compress(GOOD.encode() * 99, mtime=0)[:-9],
            ", line 1: not a complete gzip file",
        ),
        ("x.jsonl", f"{GOOD}\n{{oops".encode(), ", line 2: not JSON"),
        ("x.jsonl", b"\xff\xfe", ", line 1: not JSON"),
        ("x.jsonl", b"[" * 100_000, ", line 1: not JSON"),
        ("x.jsonl", b"\n[1]", ", line 2: not an object with play, speaker and lines"),
        ("x.jsonl", b'{"play": "P", "lines": []}', ", line 1: no 'speaker'"),
        (
            "x.jsonl",
            b'{"play": 1, "speaker": "S", "lines": []}',
            ", line 1: play and speaker must be strings",
        ),
        ("x.jsonl", GOOD.replace('["text"]', '"text"').encode(), ", line 1: lines must be a list of strings"),
        ("x.jsonl", GOOD.replace('"text"', "7").encode(), ", line 1: lines must be a list of strings"),
        ("x.jsonl", b"\n\n", ": no speeches"),
        ("x.jsonl", GOOD.replace("text", "x" * 80).encode(), ": 'P' has no speaker with 81 characters"),
        (
            "x.jsonl",
            GOOD.replace("text", "x" * 800).encode(),
            ": no speaker's last 10% has 81 characters",
        ),
        (
            "x.jsonl",
            GOOD.replace("text", "".join(map(chr, range(256, 556)))).encode(),
            ": 300 different characters, at most 256 are allowed",
        ),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, name, content, problem):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="jsonl") as caught:
        Shakespeare(data=str(path), clients=1).build(0)
    assert str(caught.value) == f"{path}{problem}"


def test_missing_data_and_too_many_clients_are_one_line(path):
    with pytest.raises(ValueError, match=r"^shakespeare needs a data file: give --data PATH$"):
        Shakespeare().build(0)
    with pytest.raises(ValueError, match=r"^Shakespeare\(clients=6\) must be at most 5, the plays in .*gz$"):
        Shakespeare(data=path, clients=6, **SMALL).build(0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"clients": 0}, r"Shakespeare\(clients=0\) must be at least 1"),
        ({"stride": 0}, r"Shakespeare\(stride=0\) must be at least 1"),
        ({"max_test": 0}, r"Shakespeare\(max_test=0\) must be at least 1"),
        ({"width": 5}, r"Shakespeare\(width=5\) must be at least heads = 6"),
        ({"test_fraction": 1.0}, r"Shakespeare\(test_fraction=1.0\) must be above 0 and below 1"),
        ({"test_fraction": 0.5, "validation_fraction": 0.5}, "must leave something to train on"),
        ({"dropout": 1.0}, r"Shakespeare\(dropout=1.0\) must be in \[0, 1\)"),
    ],
)
def test_wrong_settings_are_one_line(settings, problem):
    with pytest.raises(ValueError, match=problem):
        Shakespeare(**settings)


def test_accuracy_is_that_of_the_last_position():
    outputs = torch.zeros(2, 3, 4)
    outputs[:, :2, 1] = 1.0
    outputs[:, 2, 3] = 1.0
    metric = LastPositionAccuracy()
    metric.update(outputs, torch.tensor([[1, 1, 3], [1, 1, 0]]))
    assert metric.compute() == 0.5


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_number_of_parameters():
    # Embeddings 5·4 + 3·4; the layer: two norms 2·8, attention 4·18 + 18 and 6·4 + 4, dense 4·16 + 16 and
    # 16·4 + 4; the last norm 8. The output layer is the embedding.
    small = CharacterTransformer(5, context=3, layers=1, heads=2, head_width=3, width=4)
    assert count(small) == 20 + 12 + (16 + 90 + 28 + 80 + 68) + 8
    # 80·128 + 80·128 + 6·(512 + (128·378 + 378) + (126·128 + 128) + (128·512 + 512) + (512·128 + 128)) + 256
    assert count(CharacterTransformer(80)) == 20_480 + 6 * (512 + 48_762 + 16_256 + 66_048 + 65_664) + 256
    assert count(CharacterTransformer(80)) == 1_204_188


def test_initial_weights_shrink_with_depth():
    model = CharacterTransformer(80, layers=8)
    block = model.blocks[0]
    assert block.mlp.input.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for residual in (block.mlp.output, block.attention.output):
        assert residual.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
        assert not residual.bias.any()


def make_model(**settings):
    torch.manual_seed(0)
    sizes = {"context": 12, "layers": 2, "heads": 3, "head_width": 5, "width": 16, "dropout": 0.0}
    return CharacterTransformer(11, **(sizes | settings))


def test_a_later_character_does_not_change_earlier_outputs():
    model = make_model().eval()
    before = torch.randint(0, 11, (3, 12))
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % 11
    one, two = model(before), model(after)
    assert one.shape == (3, 12, 11)
    assert torch.equal(one[:, :7], two[:, :7])
    assert ((one[:, 7:] - two[:, 7:]).abs().amax(dim=-1) > 0.0).all(), "later outputs do see it"
    torch.testing.assert_close(model(before[:, :5]), one[:, :5])


def test_outputs_are_those_of_the_formulas():
    """The same network written out for one text, head by head and position by position."""
    model = make_model(layers=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    text = torch.randint(0, 11, (12,))
    block = model.blocks[0]
    hidden = model.tokens.weight[text] + model.positions
    query, key, value = block.attention.input(block.attention_norm(hidden)).split(15, dim=1)
    gathered = torch.zeros(12, 15)
    for head in (slice(0, 5), slice(5, 10), slice(10, 15)):
        for place in range(12):
            scores = key[: place + 1, head] @ query[place, head] / 5**0.5
            gathered[place, head] = scores.softmax(dim=0) @ value[: place + 1, head]
    hidden = hidden + block.attention.output(gathered)
    inner = block.mlp.input(block.mlp_norm(hidden))
    hidden = hidden + block.mlp.output(inner * (1 + torch.erf(inner / 2**0.5)) / 2)
    expected = model.norm(hidden) @ model.tokens.weight.T
    torch.testing.assert_close(model(text.unsqueeze(0))[0], expected)


def test_tied_weights_are_one_parameter_of_the_flat_vector():
    module = make_model()
    names = [name for name, _ in module.named_parameters()]
    assert list(module.state_dict()) == names
    batch = torch.randint(0, 11, (2, 12))
    module(batch).square().mean().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    before = module(batch).detach()
    flat = FlatModel(module)
    flat.clear_gradients()
    assert flat.size == count(make_model())
    module(batch).square().mean().backward()
    torch.testing.assert_close(flat.take_gradient(), expected)
    other = make_model()
    other.load_state_dict(flat.named_tensors())
    assert torch.equal(other(batch), before)
    flat.vector.zero_()
    assert not module(batch).any(), "embedding and output layer are both gone"


def test_one_batch_can_be_learned_by_heart():
    model = make_model(width=32, head_width=10)
    inputs, targets = torch.randint(0, 11, (2, 4, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = every_position_loss(model(inputs), targets).item()
    assert start == pytest.approx(np.log(11), abs=0.2)
    for _ in range(120):
        optimizer.zero_grad()
        loss = every_position_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("method", ["fedasync", "asyncbezier"])
def test_methods_learn_something_in_three_updates(tmp_path, method):
    entries = [{"play": play, "speaker": "S", "lines": ["to be or not to be"] * 20} for play in "ABC"]
    path = write(tmp_path / "speeches.jsonl", entries)
    task = Shakespeare(data=path, clients=3, max_windows=40, max_test=30, **SMALL).build(0)
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=8, local_lr=0.02)
    results = [
        simulate(task, method, training=training, run=Run(updates=3, evaluate_every=3)) for _ in range(2)
    ]
    evaluations = [
        [(r["loss"], r["accuracy"]) for r in result.trace if "accuracy" in r] for result in results
    ]
    assert evaluations[0] == evaluations[1]
    first, last = evaluations[0][0], evaluations[0][-1]
    assert last[0] < first[0] - 0.1
    assert 0.0 <= last[1] <= 1.0
