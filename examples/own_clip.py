"""Change an update before it leaves its client: the whole upload is cut to a length, then sent in 16 bits."""

from dataclasses import dataclass, replace
from typing import Any

from own_correction import make_task

from asyncmanifold import METHODS, PARTS, Outgoing, Parcel, Run, simulate


@dataclass(frozen=True)
class Clip(Outgoing):
    """All offsets together are at most ``clip_norm`` long."""

    clip_norm: float = 1.0

    def send(self, parcel: Parcel, random: Any) -> Parcel:  # ``random`` is this part's own
        offsets = parcel.tensors["offsets"]
        clipped = offsets * min(1.0, self.clip_norm / max(1e-12, float(offsets.norm())))
        return replace(parcel, tensors={**parcel.tensors, "offsets": clipped.half()})

    def receive(self, parcel: Parcel) -> Parcel:
        return replace(parcel, tensors={**parcel.tensors, "offsets": parcel.tensors["offsets"].float()})


PARTS["outgoing"]["clip"] = Clip  # so that scenarios, and a Flower server's messages, can name it

if __name__ == "__main__":
    for outgoing in ((), (Clip(0.5),)):
        method = replace(METHODS["asyncbezier"], outgoing=outgoing, global_lr=2.0)
        result = simulate(make_task(), method, run=Run(updates=60))
        print(f"{outgoing}: accuracy {result.summary['final']:.3f}")
