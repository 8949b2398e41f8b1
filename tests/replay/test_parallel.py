"""The same work on several things: in order, with progress over all of them, and errors as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from replay import parallel
from replay.parallel import Progress, parallel_results

STEPS = 4


def slow(thing: int, progress: Progress) -> int:
    """In some steps, each told."""
    for step in range(STEPS):
        progress(step, STEPS)
        time.sleep(0.02)
    progress(STEPS, STEPS)
    return thing * thing


def failing(thing: int, progress: Progress) -> int:
    """One of them has an error like that of a wait that was too long."""
    if thing == 2:
        raise TimeoutError("its own")
    return slow(thing, progress)


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_is_told_of_all_together(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never less than before, and everything at the end."""
    monkeypatch.setattr(parallel, "POLL_EVERY_S", 0.01)
    said: list[tuple[int, int]] = []
    with parallel_results(slow, [3, 1, 2], jobs, lambda done, of: said.append((done, of))) as results:
        assert list(results) == [9, 1, 4]
    assert said == sorted(said, key=lambda each: each[0])
    assert said[-1] == (3 * STEPS, 3 * STEPS)
    assert any(0 < done < 3 * STEPS for done, _ in said), "in between, too"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_is_raised_where_the_result_is_asked_for(jobs: int) -> None:
    """Those before it are given."""
    with parallel_results(failing, [1, 2, 3], jobs) as results:
        assert next(results) == 1
        with pytest.raises(TimeoutError, match="its own"):
            next(results)


def endless(thing: int, progress: Progress) -> int:
    """The first ends at once; the others would take minutes."""
    for step in range(0 if thing == 1 else 10_000):
        progress(step, 10_000)
        time.sleep(0.02)
    return thing


def test_leaving_early_stops_the_processes() -> None:
    """At their next progress: nothing waits for their results."""
    began = time.monotonic()
    with parallel_results(endless, [1, 2], 2) as results:
        assert next(results) == 1
    assert time.monotonic() - began < 60


HERE = os.getpid()


def copied(_: int, progress: Progress) -> bool:
    """True in this process and its copies; a process that begins anew imports this module itself."""
    progress(1, 1)
    return os.getpid() != HERE


def copies() -> list[bool]:
    """Whether each of two processes is a copy of this one."""
    with parallel_results(copied, [1, 2], 2) as results:
        return list(results)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_processes_are_copies_unless_another_thread_could_hold_a_lock() -> None:
    """Beginning anew takes as long as making a thousand decisions again."""
    program = "from tests.replay.test_parallel import copies; print(copies())"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert alone.stdout == "[True, True]\n"
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert copies() == [False, False]
    finally:
        done.set()
        thread.join()
