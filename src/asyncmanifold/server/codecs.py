"""Codecs: outgoing parts that send offsets in fewer bytes. Statistics are sent as they are.

The size of what a codec sends depends on shapes alone, so that the bytes of an upload are known when its job
is sent. Nothing that it receives is trusted: names, shapes, types and scales are checked first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.outgoing import OFFSETS, Outgoing, Parcel
from asyncmanifold.server.quantization import (
    from_half,
    from_steps,
    nearest_places,
    to_half,
    to_steps,
)

Form = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape and type of each tensor that replaces the offsets."""


@dataclass(frozen=True)
class Codec(Outgoing):
    """Replaces the offsets by other tensors. Subclasses define their form, ``encode`` and ``decode``."""

    def form(self, points: int, size: int) -> Form:
        """Return the tensors that are sent for offsets of shape (points, size)."""
        return {OFFSETS: ((points, size), torch.float32)}

    def encode(self, offsets: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        """Return offsets as they are sent."""
        return {OFFSETS: offsets}

    def decode(self, sent: Mapping[str, Tensor]) -> Tensor:
        """Return the offsets; names, shapes and types have been checked."""
        return sent[OFFSETS]

    def send(self, parcel: Parcel, random: np.random.Generator) -> Parcel:
        offsets = parcel.tensors[OFFSETS].float()  # an earlier part may have made them shorter
        return _replaced(parcel, (OFFSETS,), self.encode(offsets, random))

    def receive(self, parcel: Parcel) -> Parcel:
        form = self.form(*self.shape_of(parcel.tensors))
        for name, (shape, dtype) in form.items():
            tensor = parcel.tensors[name]
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                raise ValueError(f"{name} are {found}, must be {dtype} of shape {shape}")
            if name != OFFSETS and dtype == torch.float32 and not torch.isfinite(tensor).all():
                raise ValueError(f"{name} are not all finite")
        return _replaced(parcel, form, {OFFSETS: self.decode(parcel.tensors)})

    def outline(self, parcel: Parcel) -> Parcel | None:
        form = self.form(*parcel.tensors[OFFSETS].shape)
        sent = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in form.items()}
        return _replaced(parcel, (OFFSETS,), sent)

    def shape_of(self, sent: Mapping[str, Tensor]) -> tuple[int, int]:
        """Return the shape of the offsets that were sent."""
        points, size = sent[OFFSETS].shape
        return points, size


@dataclass(frozen=True)
class Float32(Codec):
    """Sends offsets as they are: 4 bytes per number.

    >>> from asyncmanifold import Float32, Method
    >>> Method(outgoing="float32") == Method(outgoing=(Float32(),))
    True
    """


@dataclass(frozen=True)
class Float16(Codec):
    """Sends offsets in 16 bits: 2 bytes per number, and 4 per control point.

    v ≈ c · h with h in half precision, and c the power of two for which a control point's largest number,
    divided by c, is in [2¹⁴, 2¹⁵): nothing overflows, and a number's error is at most 2⁻¹¹ of it unless it is
    below 2⁻²⁸ of the largest.

    >>> import torch
    >>> from asyncmanifold import Float16, Parcel
    >>> sent = Float16().send(Parcel({"offsets": torch.tensor([[70000.0, -3.0, 0.5]])}), random=None)
    >>> sent.size, Float16().receive(sent).tensors["offsets"]
    (10, tensor([[ 7.0016e+04, -3.0000e+00,  5.0000e-01]]))
    """

    def form(self, points: int, size: int) -> Form:
        return {OFFSETS: ((points, size), torch.float16), "offsets.scales": ((points,), torch.float32)}

    def encode(self, offsets: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        halves, scales = to_half(offsets)
        return {OFFSETS: halves, "offsets.scales": scales}

    def decode(self, sent: Mapping[str, Tensor]) -> Tensor:
        return from_half(sent[OFFSETS], sent["offsets.scales"])


@dataclass(frozen=True)
class Int8(Codec):
    """Sends offsets in 8 bits, rounded at random so that no error has a direction: about 1 byte per number.

    v ≈ c · q with c the largest size in a block over 127, and q = ⌊v/c⌋ + 1 with probability v/c − ⌊v/c⌋,
    else ⌊v/c⌋. The expectation of c · q is v (stochastic rounding as in QSGD, Alistarh et al. 2017), and the
    error is below c.

    Arguments:
        block_size: numbers that share a scale of 4 bytes, at least 1.

    >>> import numpy as np, torch
    >>> from asyncmanifold import Int8, Parcel
    >>> codec, random = Int8(block_size=2), np.random.default_rng(0)
    >>> sent = codec.send(Parcel({"offsets": torch.tensor([[127.0, -3.0, 0.5]])}), random)
    >>> sent.size, codec.receive(sent).tensors["offsets"]
    (11, tensor([[127.0000,  -3.0000,   0.5000]]))
    """

    block_size: int = 256

    def __post_init__(self) -> None:
        check(self, block_size="at least 1")

    def form(self, points: int, size: int) -> Form:
        scales = (points, -(-size // self.block_size))
        return {OFFSETS: ((points, size), torch.int8), "offsets.scales": (scales, torch.float32)}

    def encode(self, offsets: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        steps, scales = to_steps(offsets, self.block_size, random)
        return {OFFSETS: steps, "offsets.scales": scales}

    def decode(self, sent: Mapping[str, Tensor]) -> Tensor:
        return from_steps(sent[OFFSETS], sent["offsets.scales"], self.block_size)


@dataclass(frozen=True)
class CurveCodec(Codec):
    """Sends a curve's end point in 16 bits, and how far its other points are from the chord in 8.

    With v̂_n the end point as it is received and a_k = ⟨v_k, v_n⟩ / ‖v_n‖² the place on the chord that is
    nearest to an interior point, what is sent of that point is the deviation v_k − a_k v̂_n, as ``Int8`` sends
    it. A quadratic curve takes 3 bytes per parameter instead of 8, less than a model of 4. A point has no
    interior and is sent as ``Float16`` does; of a surface, all points but the local model count as interior.

    Arguments:
        block_size: numbers that share a scale of 4 bytes, at least 1.

    >>> import numpy as np, torch
    >>> from asyncmanifold import CurveCodec, Parcel
    >>> offsets = torch.tensor([[0.5, 1.0, 1.5], [1.0, 2.0, 3.0]])  # on its chord
    >>> sent = CurveCodec().send(Parcel({"offsets": offsets}), np.random.default_rng(0))
    >>> sent.size, CurveCodec().receive(sent).tensors["offsets"]
    (21, tensor([[0.5000, 1.0000, 1.5000],
            [1.0000, 2.0000, 3.0000]]))
    """

    block_size: int = 256

    def __post_init__(self) -> None:
        check(self, block_size="at least 1")

    def form(self, points: int, size: int) -> Form:
        scales = (points - 1, -(-size // self.block_size))
        return {
            "offsets.end": ((1, size), torch.float16),
            "offsets.end_scale": ((1,), torch.float32),
            "offsets.places": ((points - 1,), torch.float32),
            "offsets.deviations": ((points - 1, size), torch.int8),
            "offsets.scales": (scales, torch.float32),
        }

    def encode(self, offsets: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        halves, end_scale = to_half(offsets[-1:])
        places = nearest_places(offsets)
        deviations = offsets[:-1] - places[:, None] * from_half(halves, end_scale)
        steps, scales = to_steps(deviations, self.block_size, random)
        sent = (halves, end_scale, places, steps, scales)
        return dict(zip(self.form(*offsets.shape), sent, strict=True))

    def decode(self, sent: Mapping[str, Tensor]) -> Tensor:
        end = from_half(sent["offsets.end"], sent["offsets.end_scale"])
        deviations = from_steps(sent["offsets.deviations"], sent["offsets.scales"], self.block_size)
        return torch.cat([deviations + sent["offsets.places"][:, None] * end, end])

    def shape_of(self, sent: Mapping[str, Tensor]) -> tuple[int, int]:
        interior, size = sent["offsets.deviations"].shape
        return interior + 1, size


CODECS: dict[str, type[Outgoing]] = {
    "float32": Float32,
    "fp16": Float16,
    "int8": Int8,
    "curve": CurveCodec,
}


def _replaced(parcel: Parcel, names: Collection[str], by: Mapping[str, Tensor]) -> Parcel:
    """Return a parcel with other tensors in the place of those named."""
    kept = {name: tensor for name, tensor in parcel.tensors.items() if name not in names}
    return replace(parcel, tensors={**by, **kept})
