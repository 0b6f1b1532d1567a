"""Vectors whose numbers are in a file instead of in memory, for memories that grow with the clients."""

from __future__ import annotations

from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from asyncmanifold.errors import RunError


def on_disk(vector: Tensor) -> Tensor:
    """Return a vector with the same numbers that takes disk instead of memory, as long as it is used.

    Its file has no name any more, so that nothing is left behind, even by a process that is killed. It is in
    ``TMPDIR``; the system may keep what it has memory for, and reads the rest when it is needed. To
    everything else it is a tensor like any other, for example to a checkpoint. It must not be written to.

    >>> on_disk(torch.tensor([1.0, 2.5]))
    tensor([1.0000, 2.5000])
    """
    plain = vector.detach().cpu().contiguous()
    try:
        with NamedTemporaryFile(prefix="asyncmanifold-") as file:
            file.write(
                plain.view(torch.uint8).numpy().data
            )  # a full disk is an error here, not a crash later
            file.flush()
            return torch.from_file(file.name, shared=False, size=plain.numel(), dtype=plain.dtype)
    except OSError as error:
        raise RunError(f"a cache on disk (TMPDIR): {error.strerror or error}") from error
