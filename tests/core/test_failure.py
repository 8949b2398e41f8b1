"""What a failure tells of itself: kind and place always, its message only where that cannot be a client's text."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import CallerError
from core.failure import (
    DETAIL_MAX,
    InnerFailure,
    detail_of,
    failure_in,
    is_in_log,
    log_failure,
    mark_in_log,
    reason_for,
    safe_message,
)
from core.ids import to_column

MARK = "a client's text"


def raised(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def _grown() -> None:
    known = {1: 1}
    for key in known:
        known[key + 1] = 1


def _deep() -> None:
    _deep()


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "changed": (_grown, "dictionary changed size during iteration"),
    "index": (lambda: list[int]()[len(MARK)], "list index out of range"),
    "division": (lambda: 1 // 0, "integer division or modulo by zero"),
    "deep": (_deep, "maximum recursion depth exceeded"),
    "file": (lambda: Path(f"/{MARK}/{MARK}").read_bytes(), "No such file or directory"),
    "key": (lambda: dict[str, int]()[MARK], ""),
    "argument": (lambda: _deep(**{MARK: 1}), ""),
    "value": (lambda: int(MARK), ""),
    "attribute": (lambda: getattr(1, MARK), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_told_if_it_is_the_interpreters(case: str) -> None:
    """Those are as this interpreter writes them today; what may name something of a client's is not told."""
    work, message = CASES[case]
    error = raised(work)
    assert safe_message(error) == message
    assert MARK not in detail_of(error)
    assert detail_of(error).startswith(f"{type(error).__qualname__} at ")


def test_a_full_disk_says_so() -> None:
    """The words for the number, and no name of a file."""
    assert safe_message(OSError(errno.ENOSPC, MARK, MARK)) == "No space left on device"
    assert safe_message(OSError(MARK)) == ""


def test_the_place_is_the_innermost_line_of_ours() -> None:
    """A library's own line says little; where there is none of ours, the innermost one counts."""
    assert detail_of(raised(lambda: to_column(["not hex"]))).startswith("ValueError at core.ids:")
    assert detail_of(raised(lambda: int("x"))).startswith(f"ValueError at {__name__}:")
    assert detail_of(ValueError(MARK)) == "ValueError"


def test_a_detail_is_bounded() -> None:
    """Whatever a class is called."""
    assert len(detail_of(type("E" * 1000, (Exception,), {})())) == DETAIL_MAX


def test_a_cancellation_gives_a_failure_as_its_reason() -> None:
    """Not an error that was raised on purpose, and no cancellation."""
    error = KeyError(MARK)
    assert failure_in(asyncio.CancelledError(*reason_for(error))) is error
    assert failure_in(asyncio.CancelledError(error)) is None
    assert reason_for(CallerError("")) == reason_for(asyncio.CancelledError()) == ()
    assert MARK not in str(InnerFailure(error))
    assert not is_in_log(error)
    mark_in_log(error)
    assert is_in_log(error)


async def test_a_task_that_ends_by_a_defect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the text and the exception, once; one that ends by itself or is cancelled is not."""

    async def works() -> None:
        pass

    async def fails() -> None:
        raise KeyError(1)

    async def waits() -> None:
        await asyncio.sleep(60)

    tasks = [asyncio.create_task(each()) for each in (works, fails, waits)]
    for task in tasks:
        task.add_done_callback(log_failure(logging.getLogger("a part"), "it failed"))
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.name, record.getMessage(), record.levelname) == ("a part", "it failed", "ERROR")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
