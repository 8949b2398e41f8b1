"""A failure inside a process as the event log and its own log may have it: of what kind, and where it happened.

An exception's message may hold a piece of a prompt: `KeyError` gives the key that was not found, `TypeError` an
argument that a client named. So a message is told only if its text is one of MESSAGES, which the interpreter itself
writes, or the operating system's words for an error number. Type and place are names of code.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from types import TracebackType

from core.errors import ContrailError

DETAIL_MAX = 200
"""Characters of a detail; the rest is cut."""
OURS = frozenset({"core", "streams", "projections", "actors", "replay", "api"})
"""Packages of this project. A line of theirs says more about a failure than a line of a library."""
RECURSION = "maximum recursion depth exceeded"
MESSAGES = frozenset(
    {
        "dictionary changed size during iteration",
        "dictionary keys changed during iteration",
        "Set changed size during iteration",
        "deque mutated during iteration",
        "OrderedDict mutated during iteration",
        "can't start new thread",
        "generator raised StopIteration",
        "coroutine raised StopIteration",
        "async generator raised StopIteration",
        "cannot schedule new futures after shutdown",
        "Event loop is closed",
        "list index out of range",
        "tuple index out of range",
        "string index out of range",
        "pop from empty list",
        "pop from an empty deque",
        "popitem(): dictionary is empty",
        "division by zero",
        "integer division or modulo by zero",
    }
)
"""Texts that tell nothing but themselves."""
_IN_LOG = "the event log has it"


class InnerFailure(Exception):
    """Reason of a generation's cancellation after its reader failed; never raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def safe_message(error: BaseException) -> str:
    """The message of the exception as far as it cannot hold text of a request; empty if it may."""
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return os.strerror(error.errno)
    text = str(error)
    if isinstance(error, RecursionError) and text.startswith(RECURSION):
        return RECURSION
    return text if text in MESSAGES else ""


def detail_of(error: BaseException) -> str:
    """The exception's type, the innermost line of ours that it passed, and its message if that is safe."""
    frames = list(_frames(error.__traceback__))
    ours = [frame for frame in frames if frame[0].partition(".")[0] in OURS]
    module, line = (ours or frames or [("", 0)])[-1]
    place = f" at {module}:{line}" if module else ""
    message = safe_message(error)
    return f"{type(error).__qualname__}{place}{f': {message}' if message else ''}"[:DETAIL_MAX]


def log_failure(logger: logging.Logger, text: str) -> Callable[[asyncio.Task[None]], None]:
    """A callback for `add_done_callback`: if a defect ended the task, the process's own log has the text and where."""

    def on_done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error(text, exc_info=task.exception())

    return on_done


def failure_in(cancellation: BaseException) -> Exception | None:
    """The failure for which something was cancelled; None if another reason, or none, was given."""
    return next((each.error for each in cancellation.args if isinstance(each, InnerFailure)), None)


def reason_for(error: BaseException) -> tuple[InnerFailure, ...]:
    """Arguments for the cancellation of a generation after its reader raised this error; none for an error that was
    raised on purpose, or for a cancellation."""
    if isinstance(error, ContrailError) or not isinstance(error, Exception):
        return ()
    return (InnerFailure(error),)


def mark_in_log(error: Exception) -> None:
    """The event log has this failure: it is not to be told again where it arrives."""
    error.add_note(_IN_LOG)


def is_in_log(error: Exception) -> bool:
    """True if the error was marked."""
    return _IN_LOG in getattr(error, "__notes__", ())


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", "?")), trace.tb_lineno
        trace = trace.tb_next
