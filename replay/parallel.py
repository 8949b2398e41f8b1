"""Runs one function on several things in several processes; results come in the order of the things."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from core.errors import PeerError

JOBS_MAX = 64
LOOK_EVERY_S = 0.5
Progress = Callable[[int, int], None]
"""Told how much is done, and how much there is to do."""
Thing = TypeVar("Thing")
Result = TypeVar("Result")
Work = Callable[[Thing, Progress], Result]
_board: MutableSequence[int] = []
"""How much of each thing is done, and how much there is: in memory that all processes see."""


@contextmanager
def parallel_results(
    work: Work[Thing, Result], things: Sequence[Thing], jobs: int, progress: Progress = lambda _done, _of: None
) -> Iterator[Iterator[Result]]:
    """The result of each, given as soon as it and those before it are there; with one job they are made here, when they
    are asked for. Progress is told of all together, each taken to be as much work as the largest that was begun.
    PeerError if a process was ended."""
    jobs = min(jobs, JOBS_MAX, len(things))
    if jobs <= 1:
        board = [0, 0] * len(things)
        yield (work(thing, partial(_told, board, progress, place)) for place, thing in enumerate(things))
        return
    context = multiprocessing.get_context("spawn")
    seen: Any = context.Array("q", 2 * len(things), lock=False)
    pool = ProcessPoolExecutor(jobs, context, _begin, (seen,))
    try:
        yield _results([pool.submit(_work, work, place, thing) for place, thing in enumerate(things)], seen, progress)
    except BrokenProcessPool as error:
        raise PeerError("a process of the sweep was ended: try fewer of them with --jobs, or more memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _results(asked: Sequence[Future[Result]], board: MutableSequence[int], progress: Progress) -> Iterator[Result]:
    for each in asked:
        while not each.done():
            progress(*_sum(board))
            try:
                each.result(LOOK_EVERY_S)
            except TimeoutError:
                continue  # not done yet; if it is done by an error of that kind, that is raised below
        yield each.result()
    progress(*_sum(board))


def _work(work: Work[Thing, Result], place: int, thing: Thing) -> Result:
    return work(thing, partial(_note, _board, place))


def _told(board: MutableSequence[int], progress: Progress, place: int, done: int, of: int) -> None:
    _note(board, place, done, of)
    progress(*_sum(board))


def _note(board: MutableSequence[int], place: int, done: int, of: int) -> None:
    board[2 * place], board[2 * place + 1] = done, of


def _sum(board: MutableSequence[int]) -> tuple[int, int]:
    every = list(board)
    return sum(every[::2]), len(every) // 2 * max(every[1::2], default=0)


def _begin(board: MutableSequence[int]) -> None:
    global _board  # noqa: PLW0603  # a process of the pool has nothing else to keep it in
    _board = board
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all of us: whoever started it says so
