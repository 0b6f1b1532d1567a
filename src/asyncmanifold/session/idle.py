"""The clients that wait for a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload


class IdleClients(Sequence[int]):
    """Waiting clients, in arbitrary order: only random draws read it.

    Finding, adding and removing a client take the same time for any number of clients, because the last one
    moves into the gap that a removed one leaves.
    """

    def __init__(self, clients: Iterable[int]) -> None:
        self._clients = list(clients)
        self._places = {client: place for place, client in enumerate(self._clients)}

    def __len__(self) -> int:
        return len(self._clients)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self._clients[place]

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def add(self, client: int) -> None:
        """Add a client at the end."""
        self._places[client] = len(self._clients)
        self._clients.append(client)

    def remove(self, client: int) -> None:
        """Remove a client, wherever it is."""
        self.take(self._places[client])

    def take(self, place: int) -> int:
        """Remove the client at an index and return it."""
        client, last = self._clients[place], self._clients.pop()
        if client != last:
            self._clients[place] = last
            self._places[last] = place
        del self._places[client]
        return client
