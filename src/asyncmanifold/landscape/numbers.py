"""The numbers of a landscape: plain data, which the report draws."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """A model's position on a plane, in chords, and its loss."""

    name: str
    x: float
    y: float
    off_plane: float
    loss: float | None


@dataclass(frozen=True)
class Stop:
    """Where the server stopped: t* on the curve, and the fraction of the chord as long as the step."""

    t: float
    share: float
    curve_loss: float | None
    chord_loss: float | None


@dataclass(frozen=True)
class Scene:
    """A plane with one kind of loss on it, and that loss along the curve and the chord.

    Positions are in chords: the origin of the curve is (0, 0), its end (1, 0). A loss that is not finite is
    None.
    """

    view: str
    """``client``: the curve as learned, from Θ^t; ``server``: as corrected, from Θ^τ; ``surface``: not a
    plane, but the learned surface on its domain, where the chord is the straight way from its start to its
    end."""
    data: str
    """``train``: the client's training data; ``test``: the global test data."""
    unit: float
    """The chord's length in parameter space."""
    xs: list[float]
    ys: list[float]
    losses: list[list[float | None]]
    """One row per y."""
    marks: list[Mark]
    curve: list[tuple[float, float]]
    """Empty for a straight update."""
    off_plane: float
    """How far the curve leaves the plane, in chords."""
    ts: list[float]
    curve_losses: list[float | None]
    chord_losses: list[float | None]
    stop: Stop


@dataclass(frozen=True)
class Landscape:
    """The losses around one update, and which update of which run it is."""

    scenario: str
    method: str
    seed: int
    update: int
    client: int
    base_version: int
    """t, the version that the client started from."""
    version: int
    """τ, the version when the update arrived."""
    t: float
    fraction: float
    degree: int
    is_surface: bool
    """Whether the update is a surface, whose geodesic is drawn as the curve."""
    is_buffered: bool
    """Whether the server holds steps back and applies several at once."""
    has_statistics: bool
    """Whether the model has running statistics."""
    train_examples: tuple[int, int]
    """The number of examples used, and of all."""
    test_examples: tuple[int, int]
    parameters: int
    torch: str
    differs: bool
    """Whether the repeated run differs from the recorded one."""
    scenes: list[Scene]
