"""The processes that an engine starts for itself: their pids, their end (also when we are killed), and their threads.

Moving blocks changes the threads of an engine on a CPU, where several engines share the cores;
`deprioritize_polling_threads` undoes it:

1. NIXL's progress thread polls without a pause, a whole core for ever (its Python binding fixes the delay to 0). It
   gets the lowest priority, so that it takes only what no other thread wants. It has no name: it is the thread, none
   of the first ones, that works in an engine that is idle.
2. vLLM pins the thread that computes to the machine's last core, for every engine the same; it may use all of ours.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

import psutil  # type: ignore[import-untyped]

KILL_TIMEOUT_S = 10.0
"""Bound on the end of a process after SIGKILL."""
GUARD = """
import sys, psutil
guarded = []
for pid in sys.argv[1:]:
    try:
        guarded.append(psutil.Process(int(pid)))
    except psutil.NoSuchProcess:
        pass
sys.stdin.buffer.read()
for process in guarded:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
"""
"""Waits until its owner ends, which closes the pipe, and kills what the owner left. psutil knows a reused pid."""


class EngineProcesses:
    """The multiprocessing children of ours that come after this was made, with their descendants.

    Engines start one at a time in a process; other children of this process are not touched.
    """

    def __init__(self) -> None:
        self._others = set(multiprocessing.active_children())
        self._children: list[BaseProcess] = []
        self._descendants: list[psutil.Process] = []
        self._guard: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<EngineProcesses {self.pids} {'guarded' if self._guard else 'not guarded'}>"

    @property
    def pids(self) -> list[int]:
        """Of those that were found, our children first."""
        return [child.pid for child in self._children if child.pid] + [process.pid for process in self._descendants]

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Processes that this thread starts meanwhile do not hear SIGINT.

        Ctrl-C in a terminal reaches all that run there, and it is for us to end the engine, when its requests are done.
        """
        resource_tracker.ensure_running()  # who starts it lets SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def used_s(self) -> float:
        """The time of the CPU that those found have used; one that has ended does not count."""
        used_s = 0.0
        for pid in self.pids:
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                used_s += times.user + times.system
        return used_s

    def find(self) -> None:
        """Those that run now are known."""
        self._children = sorted(set(multiprocessing.active_children()) - self._others, key=lambda child: child.pid or 0)
        self._descendants = []
        for child in self._children:
            try:
                self._descendants += psutil.Process(child.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue

    def guard(self) -> None:
        """If we are killed, a small process in a session of its own kills those that were found."""
        assert self._guard is None
        command = [sys.executable, "-I", "-c", GUARD, *map(str, self.pids)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    async def end(self, grace_s: float) -> None:
        """None that was found runs any more: they had `grace_s` to end by themselves. The guard is gone too."""
        await asyncio.to_thread(self._wait, grace_s)
        self._kill()
        await asyncio.to_thread(self._wait, KILL_TIMEOUT_S)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _wait(self, timeout_s: float) -> None:
        """Those that ended are known to be ended; our own children are waited for by multiprocessing alone."""
        psutil.wait_procs(self._descendants, timeout_s)
        for child in self._children:
            child.join(timeout_s)

    def _kill(self) -> None:
        for child in self._children:
            child.kill()  # does nothing to one that has ended
        for process in self._descendants:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


THREADS_SETTLE_S = 0.5
"""After this an engine that has just started is idle."""
THREADS_WATCH_S = 0.5
POLLING_SHARE = 0.1
"""A thread that takes more than this of a core in an idle engine does nothing but poll."""
LOWEST_PRIORITY = 19


def deprioritize_polling_threads(pids: Iterable[int]) -> int:
    """Number of threads of these idle processes that have the lowest priority now; blocks for a second.

    Processes that are gone are skipped.
    """
    try:
        processes = [psutil.Process(pid) for pid in pids]
        for process in processes:
            os.sched_setaffinity(process.pid, os.sched_getaffinity(0))
        time.sleep(THREADS_SETTLE_S)
        before = dict(_used(processes))
        time.sleep(THREADS_WATCH_S)
        took_s = {thread: used_s - before.get(thread, used_s) for thread, used_s in _used(processes)}
        polling = [thread for thread, used_s in took_s.items() if used_s > THREADS_WATCH_S * POLLING_SHARE]
        for thread in polling:
            os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0
    return len(polling)


def _used(processes: list[psutil.Process]) -> Iterator[tuple[int, float]]:
    """Thread ids but the first of each process, and how much time each has taken, in seconds."""
    for process in processes:
        for thread in process.threads():
            if thread.id != process.pid:
                yield thread.id, thread.user_time + thread.system_time
