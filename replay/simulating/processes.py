"""Processes: the same work on several things at once, in several processes; results come in the order of the things."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from core.errors import PeerError

JOBS_MAX = 64
Thing = TypeVar("Thing")
Result = TypeVar("Result")


@contextmanager
def shared(work: Callable[[Thing], Result], things: Sequence[Thing], jobs: int) -> Iterator[Iterator[Result]]:
    """The result of each, given as soon as it and those before it are there; with one job they are made here, when they
    are asked for. PeerError if a process was ended."""
    jobs = min(jobs, JOBS_MAX, len(things))
    if jobs <= 1:
        yield map(work, things)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_silently)
    try:
        yield pool.map(work, things)
    except BrokenProcessPool as error:
        raise PeerError("a process of the sweep was ended: try fewer of them with --jobs, or more memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_silently() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all of us: whoever started it says so
