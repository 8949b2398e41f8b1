"""LineProcess: answers, bounds, and processes that are gone behind each failure."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest

from actors.planning.line_process import LineProcess
from tests.fixtures.eventually import eventually

ECHO = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"
LINE_MAX = 1_000
IN_TIME_S = 20.0


@pytest.fixture
async def started() -> AsyncIterator[list[LineProcess]]:
    """Those that a test makes; they are killed behind it."""
    found: list[LineProcess] = []
    yield found
    for each in found:
        await each.kill()
        assert each.pid is None


def program(started: list[LineProcess], text: str) -> LineProcess:
    started.append(LineProcess((sys.executable, "-c", text), LINE_MAX))
    return started[-1]


def is_gone(pid: int | None) -> bool:
    """No process has this number."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_one_process_answers_line_by_line(started: list[LineProcess]) -> None:
    """It starts with the first question; after its end the next one starts another."""
    it = program(started, ECHO)
    assert (it.pid, it.has_answered) == (None, False)
    assert await it.ask(b"a", IN_TIME_S) == b"aa\n"
    first = it.pid
    assert await it.ask(b"b", IN_TIME_S) == b"bb\n"
    assert it.pid == first
    assert it.has_answered

    await it.kill()
    assert is_gone(first)
    assert (it.pid, it.has_answered) == (None, False)
    assert await it.ask(b"c", IN_TIME_S) == b"cc\n"
    assert it.pid != first


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import time; input(); time.sleep(600)", TimeoutError),
        ("raise SystemExit(1)", (EOFError, OSError)),
        ("import os; input(); os.kill(os.getpid(), 9)", EOFError),
        (f"input(); print('x' * {2 * LINE_MAX}, flush=True); input()", ValueError),
    ],
)
async def test_a_failure_ends_the_process(
    started: list[LineProcess], text: str, error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """The next question is answered by another one."""
    it = program(started, text)
    with pytest.raises(error):
        await it.ask(b"a", 0.5 if error is TimeoutError else IN_TIME_S)
    assert it.pid is None

    it.command = (sys.executable, "-c", ECHO)
    assert await it.ask(b"b", IN_TIME_S) == b"bb\n"


async def test_a_program_that_is_not_there(started: list[LineProcess]) -> None:
    """Is an OSError."""
    started.append(LineProcess(("/no/such/program",), LINE_MAX))
    with pytest.raises(FileNotFoundError):
        await started[-1].ask(b"a", IN_TIME_S)


async def test_an_answer_of_its_bound_is_read(started: list[LineProcess]) -> None:
    """A byte more is too long."""
    it = program(started, f"input(); print('x' * {LINE_MAX - 1}, flush=True); input()")
    assert len(await it.ask(b"a", IN_TIME_S)) == LINE_MAX


async def test_a_cancelled_question_leaves_no_answer(started: list[LineProcess]) -> None:
    """Its late answer is not that of the next question."""
    it = program(started, "import sys, time\nfor line in sys.stdin: time.sleep(0.3); print(line.strip(), flush=True)")
    question = asyncio.create_task(it.ask(b"a", IN_TIME_S))
    await eventually(lambda: it.pid, "a process")
    pid = it.pid
    question.cancel()
    await asyncio.wait([question])
    assert is_gone(pid)
    assert await it.ask(b"b", IN_TIME_S) == b"b\n"
