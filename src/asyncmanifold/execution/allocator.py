"""Let the C library keep freed memory, since the next batch needs just as much."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h
MEGABYTE = 1 << 20


def keep_freed_memory() -> None:
    """Ask glibc's malloc to keep freed memory instead of returning it to the system; elsewhere, do nothing.

    A batch's activations are a few megabytes each. By default glibc returns them to the system when they
    are freed and gets fresh pages for the next batch, with one page fault for every 4 kB: about a tenth of a
    worker's time. The vectors of a model of more than 8 million parameters would always be fresh pages, since
    glibc maps what is larger than 32 MB anew whatever its threshold: so nothing is mapped.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_MAX, 0)
        set_option(M_TRIM_THRESHOLD, 2048 * MEGABYTE - 1)
        set_option(M_TOP_PAD, 64 * MEGABYTE)
