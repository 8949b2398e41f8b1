"""Runs one function on several items in several processes; results come in the order of the items."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from core.errors import PeerError

JOBS_MAX = 64
POLL_EVERY_S = 0.5
Progress = Callable[[int, int], None]
"""Gets how many units are done, and how many there are."""
Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item, Progress], Result]
_board: MutableSequence[int] = []
"""Memory of all processes: of each item the units done and all units, then whether the processes should stop."""


class _Stopped(Exception):
    """Nothing waits for the result any more."""


@contextmanager
def parallel_results(
    work: Work[Item, Result], items: Sequence[Item], jobs: int, progress: Progress = lambda _done, _of: None
) -> Iterator[Iterator[Result]]:
    """The results, each as soon as it and those before it exist; with one job each is made here when it is asked for.
    `progress` gets the sum over all items, each counted as large as the largest that was begun. Leaving the block
    stops the processes at their next progress. PeerError if a process was killed.

    The processes are forked where this one has no other thread, which could hold a lock for ever in its copy: they
    begin in some milliseconds. Elsewhere each begins anew, which takes half a second of imports.
    """
    jobs = min(jobs, JOBS_MAX, len(items))
    if jobs <= 1:
        board = [0, 0] * len(items) + [False]

        def report(index: int, done: int, of: int) -> None:
            _write(board, index, done, of)
            progress(*_sum(board))

        yield (work(item, partial(report, index)) for index, item in enumerate(items))
        return
    forks = sys.platform == "linux" and threading.active_count() == 1
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    shared = context.Array("q", 2 * len(items) + 1, lock=False)
    pool = ProcessPoolExecutor(jobs, context, _start_process, (shared,))
    try:
        yield _results([pool.submit(_work, work, index, item) for index, item in enumerate(items)], shared, progress)
    except BrokenProcessPool as error:
        raise PeerError("a process was killed before its end: try fewer with --jobs, or more memory") from error
    finally:
        shared[-1] = True
        pool.shutdown(cancel_futures=True)


def _results(futures: Sequence[Future[Result]], board: MutableSequence[int], progress: Progress) -> Iterator[Result]:
    for future in futures:
        while not future.done():
            progress(*_sum(board))
            try:
                future.result(POLL_EVERY_S)
            except TimeoutError:
                continue  # not done yet; if it is done by an error of that kind, that is raised below
        yield future.result()
    progress(*_sum(board))


def _work(work: Work[Item, Result], index: int, item: Item) -> Result:
    return work(item, partial(_write, _board, index))


def _write(board: MutableSequence[int], index: int, done: int, of: int) -> None:
    if board[-1]:
        raise _Stopped
    board[2 * index], board[2 * index + 1] = done, of


def _sum(board: MutableSequence[int]) -> tuple[int, int]:
    every = list(board)[:-1]
    return sum(every[::2]), len(every) // 2 * max(every[1::2], default=0)


def _start_process(board: MutableSequence[int]) -> None:
    global _board  # noqa: PLW0603  # a process of the pool has nothing else to keep it in
    _board = board
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every process; the first one reports it


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for cycles inside the block: folds make none, and searching all that they hold takes a sixth of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
