"""What the server does about staleness: the corrections (the paper's π, section 3).

A correction is a function of the Gram matrix of (v_1 … v_n, d), where d is the drift Θ^τ − Θ^t. It
returns, for each control point, the coefficients that express the corrected offset in these vectors. A
rule that is not such a combination, like delay compensation, transforms the offsets entry by entry first.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.spaces import Space
from asyncmanifold.server.stages import Arrival, Memory, Part


def cosines(gram: Floats) -> list[float]:
    """Return cos(v_k, d) for each control point; 0 if a vector is zero."""
    drift = max(0.0, gram[-1, -1])
    found = []
    for k in range(len(gram) - 1):
        product = sqrt(max(0.0, gram[k, k]) * drift)
        found.append(float(min(1.0, max(-1.0, gram[k, -1] / product))) if product > 0.0 else 0.0)
    return found


def joint_cosine(gram: Floats) -> float:
    """Return the cosine of (v_1 … v_n) to (d … d); 0 if one of them is zero."""
    squares = np.clip(np.diag(gram), 0.0, None)
    product = float(np.sqrt(squares[:-1].sum() * squares[-1] * (len(gram) - 1)))
    return float(np.clip(gram[:-1, -1].sum() / product, -1.0, 1.0)) if product > 0.0 else 0.0


@dataclass(frozen=True)
class Correction(Part):
    """Leaves every offset unchanged. Subclasses override what they change.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Correction, Method
    >>> @dataclass(frozen=True)
    ... class HalfWay(Correction):  # between trusting the direction and the position: v' = v − d/2
    ...     def coefficients(self, gram):
    ...         matrix = super().coefficients(gram)
    ...         matrix[:, -1] = -0.5
    ...         return matrix
    >>> Method(correction=HalfWay()).correction
    HalfWay()
    """

    def coefficients(self, gram: Floats) -> Floats:
        """Return an (n, n + 1) matrix C: corrected v'_k = Σ_j C[k, j] v_j + C[k, n] d."""
        return np.eye(len(gram) - 1, len(gram))

    def projected(self, gram: Floats) -> list[bool]:
        """Return which control points lose their component along the drift."""
        return [False] * (len(gram) - 1)

    def transform(
        self, offsets: Tensor, drift: Tensor, arrival: Arrival, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Return offsets changed entry by entry, and the new memory."""
        return offsets, memory

    def lifted(self, space: Space, theta: Tensor, base: Tensor, offsets: Tensor) -> list[Tensor]:
        """Return tangent vectors at ``base`` as tangent vectors at ``theta``, on a curved space."""
        return [space.transport(base, theta, offset) for offset in offsets]

    def lifted_coefficients(self, gram: Floats) -> Floats:
        """Return ``coefficients`` for offsets that ``lifted`` has returned."""
        return self.coefficients(gram)

    @property
    def transforms(self) -> bool:
        """Whether ``transform`` is overridden; otherwise the drift vector is never formed."""
        return type(self).transform is not Correction.transform


@dataclass(frozen=True)
class Tangent(Correction):
    """v' = v: trust the direction (asynchronous SGD; the paper's AsyncTan).

    >>> import numpy as np
    >>> from asyncmanifold import Tangent
    >>> Tangent().coefficients(np.eye(2))  # of v and d
    array([[1., 0.]])
    """


@dataclass(frozen=True)
class Position(Correction):
    """v' = v − d: trust the learned position (FedAsync; the paper's AsyncPos).

    >>> import numpy as np
    >>> from asyncmanifold import Position
    >>> Position().coefficients(np.eye(2))  # of v and d
    array([[ 1., -1.]])
    """

    def coefficients(self, gram: Floats) -> Floats:
        """Return the identity with −1 for the drift."""
        matrix = super().coefficients(gram)
        matrix[:, -1] = -1.0
        return matrix

    def lifted(self, space: Space, theta: Tensor, base: Tensor, offsets: Tensor) -> list[Tensor]:
        """Return the logarithm at ``theta`` of each learned position, which in flat space is v − d."""
        return [space.log(theta, space.exp(base, offset)) for offset in offsets]

    def lifted_coefficients(self, gram: Floats) -> Floats:
        """Leave the offsets unchanged: ``lifted`` has subtracted the drift already."""
        return super().coefficients(gram)


@dataclass(frozen=True)
class OrthoDC(Correction):
    """v' = v − (⟨v,d⟩/⟨d,d⟩) d where cos(v, d) ≤ ϑ, else v (the paper's OrthoDC).

    Differs from the paper, whose form over all control points would move the fixed first one: it is applied
    to each control point separately, or ``jointly``.

    Arguments:
        threshold: ϑ. 1 always projects, 0 is gradient surgery, −1 projects only offsets opposite to the drift
            (up to 1e-6, about the accuracy of single precision).
        jointly: project the free control points as one long vector (v_1 … v_n), whose drift is (d … d).

    >>> import numpy as np
    >>> from asyncmanifold import OrthoDC
    >>> OrthoDC(0.0).coefficients(np.array([[5.0, -2.0], [-2.0, 4.0]]))  # ⟨v,d⟩ = −2, ⟨d,d⟩ = 4
    array([[1. , 0.5]])
    """

    threshold: float = 0.0
    _: KW_ONLY
    jointly: bool = False

    def __post_init__(self) -> None:
        check(self, threshold="between -1 and 1")

    def projected(self, gram: Floats) -> list[bool]:
        """Return where the cosine to the drift is at most the threshold; a zero vector has no direction."""
        points = len(gram) - 1
        if gram[-1, -1] <= 0.0:
            return [False] * points
        squares = np.diag(gram)[:-1]
        if self.jointly:
            return [bool(squares.max() > 0.0) and joint_cosine(gram) <= self.threshold + 1e-6] * points
        angles = zip(squares, cosines(gram), strict=True)
        return [bool(square > 0.0) and angle <= self.threshold + 1e-6 for square, angle in angles]

    def coefficients(self, gram: Floats) -> Floats:
        """Return the identity with −⟨v,d⟩/⟨d,d⟩ for the drift where a control point is projected."""
        matrix = super().coefficients(gram)
        along = gram[:-1, -1]
        if self.jointly:
            along = np.full_like(along, along.mean())
        for k, projects in enumerate(self.projected(gram)):
            if projects:
                matrix[k, -1] = -along[k] / gram[-1, -1]
        return matrix


@dataclass(frozen=True)
class DelayCompensation(Correction):
    """v' = v − λ ⊙ v ⊙ v ⊙ d (DC-ASGD, Zheng et al. 2017), for a local model's offset v instead of −ηg.

    With ``adaptive``, λ = λ₀/√(MeanSquare + ε) entry by entry, where MeanSquare ← m · MeanSquare +
    (1 − m) · v_n² over the end points of accepted updates, this one included; else λ = λ₀.

    Arguments:
        strength: λ₀.
        adaptive: divide by the root of the mean square.
        mean_square_momentum: m.
        epsilon: ε.

    >>> from asyncmanifold import DelayCompensation
    >>> DelayCompensation(2.0).transforms  # entry by entry, before any combination
    True
    """

    strength: float = 2.0
    _: KW_ONLY
    adaptive: bool = True
    mean_square_momentum: float = 0.95
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        check(
            self,
            strength="at least 0 and finite",
            mean_square_momentum="in [0, 1)",
            epsilon="above 0 and finite",
        )

    def init(self, theta: Tensor) -> Memory:
        return {"mean_square": torch.zeros_like(theta)} if self.adaptive else {}

    def transform(
        self, offsets: Tensor, drift: Tensor, arrival: Arrival, memory: Memory
    ) -> tuple[Tensor, Memory]:
        if not self.adaptive:
            return offsets - self.strength * offsets * offsets * drift, memory
        square = offsets[-1] * offsets[-1]
        mean_square = torch.lerp(square, memory["mean_square"], self.mean_square_momentum)
        compensation = drift * (mean_square + self.epsilon).rsqrt_() * self.strength
        return offsets - offsets * offsets * compensation, {"mean_square": mean_square}


CORRECTIONS: dict[str, type[Correction]] = {
    "position": Position,
    "tangent": Tangent,
    "orthodc": OrthoDC,
    "delay-compensation": DelayCompensation,
}
