"""A buffer of clients' mean steps that works in rounds: every client has one step in a round (Ringleader)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.server.caches import ClientCache, added
from asyncmanifold.server.gram import Visit, blocks
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
        client, moved = arrival.client, memory["moved"]
        if moved and client in memory["rows"] and client not in moved:  # it is its turn
            rows, counts = memory["rows"], memory["counts"]
            mixes = self._mixes(rows, counts, client)
            row, total = self.exchanged(memory["total"], move, rows[client], *mixes)
            rows, counts = {**rows, client: row}, {**counts, client: counts[client] + 1}
            table = {**memory, "total": total, "rows": rows, "counts": counts}
        else:
            table_name, count_name = ("next_rows", "next_counts") if moved else ("rows", "counts")
            rows, counts = memory[table_name], memory[count_name]
            row = self.remembered(move.vector(*self._mixes(rows, counts, client)))
            rows, counts = {**rows, client: row}, {**counts, client: counts.get(client, 0) + 1}
            table = {**memory, table_name: rows, count_name: counts}
            if len(rows) < arrival.clients:
                return None, table
            table = self._next_round(table) if moved else table
            table["total"] = added(rows.values(), memory["total"])
        moves = move.along(table["total"], 1.0 / len(table["rows"]))
        table["moved"] = {**table["moved"], client: True}
        return moves, table if len(table["moved"]) < len(table["rows"]) else self._next_round(table)

    def _mixes(self, rows: dict[int, Tensor], counts: dict[int, int], client: int) -> tuple[Visit, ...]:
        """Return what turns a client's step into the mean of it and those in the client's row, if any."""
        if client not in rows:
            return ()
        pieces, share = blocks(rows[client]), 1.0 / (counts[client] + 1)
        return (lambda number, step: torch.lerp(pieces[number].to(step), step, share, out=step),)

    def _next_round(self, memory: Memory) -> Memory:
        """Return the memory with the second table in place of the first."""
        rows = {"rows": memory["next_rows"], "counts": memory["next_counts"]}
        return {**memory, **rows, "next_rows": {}, "next_counts": {}, "moved": {}}
