"""Tuning of processes that serve: the limit of open files, garbage collection, and malloc arenas.

CPython looks through the newest objects after every 700 that were made, and now and then through all that live. In a
front end that is 5 to 8 % of its time, and 40 ms at once, mostly for libraries and folds that stay until its end.

glibc gives threads heaps of their own, and what is given back in one serves no other. A front end tokenizes long
prompts in threads and keeps what came of them: its 32 MiB of texts came to take 80.
"""

from __future__ import annotations

import ctypes
import gc
import resource


def raise_file_limit() -> int:
    """As many as the system allows this process: shells and service managers mostly give it fewer. Returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


NEW_MAX = 5_000
"""So many objects more than were given up, and the newest are looked through."""
ROUNDS = 5
"""After so many such looks one goes further back, and after so many of those one through all made since the start."""


def tune_garbage_collection() -> None:
    """What lives now is never looked through again, what is made from now on seldom; takes some 50 ms. For servers that
    are set up: what they give up is mostly given back at once, by its count."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_MAX, ROUNDS, ROUNDS)


_M_ARENA_MAX = -8
"""malloc.h"""


def use_one_malloc_arena() -> None:
    """Threads started from now on allocate where the first one does; with another C library than glibc nothing
    changes. Python's own lock has them take turns anyway."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
