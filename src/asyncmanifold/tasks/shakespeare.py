"""Predict the next character in Shakespeare's plays; every play belongs to one client."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.metrics import Accuracy
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.partitions import draw_subset
from asyncmanifold.tasks.task import Task
from asyncmanifold.tasks.transformer import CharacterTransformer

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shakespeare:
    """The plays, divided into clients and windows of text, and the size of the model.

    Each speaker's text is split into training, validation and test text, in this order. A window lies within
    one of them, so no character is in windows of two. A held-out text too short for a window is used for
    training.

    Arguments:
        data: a .jsonl or .jsonl.gz file of speeches in order: objects with ``play``, ``speaker`` and
            ``lines``.
        clients: at most the number of plays; surplus plays are dealt evenly at random.
        context: characters that the model sees; a window holds these and the next one.
        stride: the distance between the starts of two windows, in characters.
        max_windows: the most training windows per client, chosen at random.
        max_test: the most test windows, and validation windows of all clients together, chosen at random.
        test_fraction: the share of each speaker's text that the global model is evaluated on.
        validation_fraction: the share of each speaker's text that is held out for fairness and tuning.
        layers: the transformer's layers.
        heads: attention heads per layer; each is width // heads wide.
        width: the width of its embeddings.
        dropout: the share of activations dropped during training.
    """

    data: str | None = None
    clients: int = 30
    context: int = 80
    stride: int = 1
    max_windows: int | None = None
    max_test: int | None = 20_000
    test_fraction: float = 0.1
    validation_fraction: float = 0.1
    layers: int = 6
    heads: int = 6
    width: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        counts = ("clients", "context", "stride", "layers", "heads", "max_windows", "max_test")
        check(self, dropout="in [0, 1)", **dict.fromkeys(counts, "at least 1"))
        check(self, **dict.fromkeys(("test_fraction", "validation_fraction"), "above 0 and below 1"))
        if self.width < self.heads:
            raise InputError(f"Shakespeare(width={self.width}) must be at least heads = {self.heads}")
        if self.test_fraction + self.validation_fraction >= 1.0:
            raise InputError(
                f"Shakespeare(test_fraction={self.test_fraction}, validation_fraction="
                f"{self.validation_fraction}) must leave something to train on"
            )

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same clients and windows."""
        if self.data is None:
            raise InputError("shakespeare needs a data file: give --data PATH")
        corpus = read_corpus(self.data)
        titles = list(corpus.plays)
        if self.clients > len(titles):
            raise InputError(
                f"Shakespeare(clients={self.clients}) must be at most {len(titles)}, the plays in {self.data}"
            )
        windows = [self.windows(corpus.plays[title]) for title in titles]
        for title, pieces in zip(titles, windows, strict=True):
            if not len(pieces.train):
                raise InputError(f"{self.data}: {title!r} has no speaker with {self.context + 1} characters")
        if not any(len(pieces.test) for pieces in windows):
            raise InputError(
                f"{self.data}: no speaker's last {self.test_fraction:.0%} has {self.context + 1} characters"
            )
        # Training windows are drawn last, so that max_windows does not change the held-out ones.
        random = derive(seed, Purpose.PARTITION)
        dealt = deal_plays(len(titles), self.clients, random)

        def examples(most: int | None, pieces: Iterable[Starts]) -> WindowData:
            starts = draw_subset(most, np.concatenate(list(pieces)), random)
            return WindowData(corpus.text, torch.from_numpy(starts), self.context)

        test = examples(self.max_test, (pieces.test for pieces in windows))
        most = None if self.max_test is None else max(1, self.max_test // self.clients)
        validation = [examples(most, (windows[play].validation for play in plays)) for plays in dealt]
        train = [examples(self.max_windows, (windows[play].train for play in plays)) for plays in dealt]
        return Task(
            model=partial(
                CharacterTransformer,
                len(corpus.vocabulary),
                context=self.context,
                layers=self.layers,
                heads=self.heads,
                head_width=self.width // self.heads,
                width=self.width,
                dropout=self.dropout,
            ),
            loss=every_position_loss,
            clients=train,
            validation=validation,
            test=test,
            metrics={"accuracy": LastPositionAccuracy},
        )

    def windows(self, speakers: Iterable[Span]) -> Windows:
        """Return the start positions of the windows of these speakers' texts."""
        pieces = []
        for first, end in speakers:
            test = self._held_out(end - first, self.test_fraction)
            validation = self._held_out(end - first, self.validation_fraction)
            cuts = pairwise((first, end - test - validation, end - test, end))
            ranges = ((start, stop - self.context, self.stride) for start, stop in cuts)
            pieces.append([np.arange(*each, dtype=np.int64) for each in ranges])
        return Windows(*(np.concatenate(part) for part in zip(*pieces, strict=True)))

    def _held_out(self, length: int, fraction: float) -> int:
        held_out = int(length * fraction)
        return held_out if held_out > self.context else 0


class Span(NamedTuple):
    """The position of one speaker's text in the corpus."""

    first: int
    end: int


class Windows(NamedTuple):
    """The start positions of a play's windows for training, validation and test."""

    train: Starts
    validation: Starts
    test: Starts


@dataclass(frozen=True)
class Corpus:
    """All speakers' texts, concatenated, as character numbers."""

    text: Tensor
    """Indices into ``vocabulary``, uint8."""
    vocabulary: str
    """Every character of the text once, sorted."""
    plays: dict[str, list[Span]]
    """The speakers' texts of each play."""

    def decode(self, numbers: Tensor) -> str:
        """Return character numbers as text."""
        return "".join(self.vocabulary[number] for number in numbers.tolist())


class WindowData:
    """Windows of one text: ``context`` characters as inputs, and the same shifted by one as targets."""

    def __init__(self, text: Tensor, starts: Tensor, context: int) -> None:
        self._text = text
        self._starts = starts
        self._window = torch.arange(context + 1)

    def __len__(self) -> int:
        return len(self._starts)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the characters of these windows and those that follow them, position by position."""
        characters = self._text[self._starts[indices].unsqueeze(1) + self._window].to(torch.int64)
        return characters[:, :-1], characters[:, 1:]


class LastPositionAccuracy(Accuracy):
    """The share of windows whose last position, the one with full context, predicts the next character."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add scores (batch, position, character) and character numbers (batch, position)."""
        super().update(outputs[:, -1], targets[:, -1])


def every_position_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions of all windows."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def deal_plays(plays: int, clients: int, random: np.random.Generator) -> list[list[int]]:
    """Return each client's plays: no client gets a second one before every client has one, and so on."""
    dealt: list[list[int]] = [[] for _ in range(clients)]
    order = random.permutation(plays).tolist()
    for first in range(0, plays, clients):
        receivers = random.permutation(clients).tolist()
        for client, play in zip(receivers, order[first : first + clients], strict=False):
            dealt[client].append(play)
    return dealt


def read_corpus(path: str) -> Corpus:
    """Return the speeches of a file, joined by speaker; any error is an ``InputError`` of one line."""
    lines_of: dict[str, dict[str, list[str]]] = {}
    for play, speaker, lines in _speeches(path):
        lines_of.setdefault(play, {}).setdefault(speaker, []).extend(lines)
    if not lines_of:
        raise InputError(f"{path}: no speeches")
    texts: list[str] = []
    plays: dict[str, list[Span]] = {}
    end = 0
    for play, speakers in lines_of.items():
        plays[play] = []
        for lines in speakers.values():
            texts.append("\n".join(lines))
            first, end = end, end + len(texts[-1])
            plays[play].append(Span(first, end))
    text, vocabulary = _encode("".join(texts), path)
    return Corpus(text, vocabulary, plays)


def _speeches(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield play, speaker and lines of every speech."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _speech(line, f"{path}, line {number}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}, line {number + 1}: not a complete gzip file") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _speech(line: bytes, where: str) -> tuple[str, str, list[str]]:
    try:
        entry: Any = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON") from error
    if not isinstance(entry, dict):
        raise InputError(f"{where}: not an object with play, speaker and lines")
    for key in ("play", "speaker", "lines"):
        if key not in entry:
            raise InputError(f"{where}: no {key!r}")
    play, speaker, lines = entry["play"], entry["speaker"], entry["lines"]
    if not (isinstance(play, str) and isinstance(speaker, str)):
        raise InputError(f"{where}: play and speaker must be strings")
    if not (isinstance(lines, list) and all(isinstance(each, str) for each in lines)):
        raise InputError(f"{where}: lines must be a list of strings")
    return play, speaker, cast(list[str], lines)


def _encode(text: str, path: str) -> tuple[Tensor, str]:
    """Return a text as indices into its vocabulary, and the vocabulary."""
    vocabulary = "".join(sorted(set(text)))
    if len(vocabulary) > 256:
        raise InputError(f"{path}: {len(vocabulary)} different characters, at most 256 are allowed")
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    number_of = np.zeros(max(map(ord, vocabulary), default=0) + 1, dtype=np.uint8)
    number_of[[ord(character) for character in vocabulary]] = np.arange(len(vocabulary))
    return torch.from_numpy(number_of[codes]), vocabulary
