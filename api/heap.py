"""Heap: one for all threads of a process.

glibc gives threads heaps of their own, and what is given back in one serves no other. A front end tokenizes long
prompts in threads and keeps what came of them: its 32 MiB of texts came to take 80.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""malloc.h"""


def one_heap() -> None:
    """Threads started from now on allocate where the first one does; with another C library than glibc nothing
    changes. Python's own lock has them take turns anyway."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
