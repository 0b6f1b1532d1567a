"""A buffer of clients' mean steps that works in rounds: every client has one step in a round (Ringleader)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.server.caches import ClientCache, added, exchanged
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class RoundTable(ClientCache):
    """The model moves by η_g (1/n) Σ_i G_i/b_i, n times in a round (Ringleader, Maranjyan, Richtárik 2025).

    G_i is the sum of the b_i steps in client i's row of a table. First the table is filled: the model stays
    until every client has a row. The update that fills it is the first to move the model. From then on the
    next update of each other client is added to its row and moves the model once; further updates of clients
    that have had their turn wait in a second table, which is the table of the next round.

    A round that waits for a client that has left ends when as many clients as there are now have a row in the
    second table.

    Arguments:
        cache_precision: how rows are remembered, ``"float32"`` or ``"bfloat16"``.
        cache_place: where, in ``"memory"`` or on ``"disk"`` (``TMPDIR``).

    >>> from asyncmanifold import METHODS
    >>> METHODS["ringleader"].buffer
    RoundTable(cache_precision='float32', cache_place='memory')
    """

    tangents: ClassVar[tuple[str, ...]] = ("total", "rows", "next_rows")

    @property
    def memory_size(self) -> str:
        """What the two tables take, for n clients and P parameters."""
        return f"2 {super().memory_size}"

    def init(self, theta: Tensor) -> Memory:
        return {
            "total": torch.zeros_like(theta),
            **{name: {} for name in ("rows", "counts", "next_rows", "next_counts", "moved")},
        }

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        client, step, moved = arrival.client, move.vector(), memory["moved"]
        if moved and (client in moved or client not in memory["rows"]):  # it has had its turn, or is new
            rows, counts = self._with_step(memory["next_rows"], memory["next_counts"], client, step)
            held = {**memory, "next_rows": rows, "next_counts": counts}
            if len(rows) < arrival.clients:
                return None, held
            table = self._next_round(held)
        else:
            rows, counts = self._with_step(memory["rows"], memory["counts"], client, step)
            total = exchanged(memory["total"], rows[client], memory["rows"].get(client))
            table = {**memory, "total": total, "rows": rows, "counts": counts}
            if not moved and len(rows) < arrival.clients:
                return None, table
        moves = move.along(table["total"], 1.0 / len(table["rows"]))
        table["moved"] = {**table["moved"], client: True}
        return moves, table if len(table["moved"]) < len(table["rows"]) else self._next_round(table)

    def _with_step(
        self, rows: dict[int, Tensor], counts: dict[int, int], client: int, step: Tensor
    ) -> tuple[dict[int, Tensor], dict[int, int]]:
        """Return the means of clients' steps and their numbers with one step more."""
        count = counts.get(client, 0) + 1
        if count > 1:
            step = torch.lerp(rows[client].to(step), step, 1.0 / count, out=step)
        return {**rows, client: self.remembered(step)}, {**counts, client: count}

    def _next_round(self, memory: Memory) -> Memory:
        """Return the memory with the second table in place of the first."""
        total = added(memory["next_rows"].values(), memory["total"])
        kept = {"rows": memory["next_rows"], "counts": memory["next_counts"]}
        return {"total": total, **kept, "next_rows": {}, "next_counts": {}, "moved": {}}
