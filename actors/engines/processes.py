"""The processes that an engine starts for itself: who they are, and that they end, also when we are killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys

import psutil  # type: ignore[import-untyped]

KILL_TIMEOUT_S = 10.0
"""How long the system may take to end a process after SIGKILL."""
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

    Engines start one at a time in a process; whatever else is a child of ours is not touched.
    """

    def __init__(self) -> None:
        self._others = set(multiprocessing.active_children())
        self._found: list[psutil.Process] = []
        self._guard: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<EngineProcesses {self.pids} {'guarded' if self._guard else 'not guarded'}>"

    @property
    def pids(self) -> list[int]:
        """Of those that were found."""
        return [process.pid for process in self._found]

    def find(self) -> None:
        """Those that run now are known."""
        self._found = []
        for child in set(multiprocessing.active_children()) - self._others:
            try:
                process = psutil.Process(child.pid)
                self._found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue

    def guard(self) -> None:
        """If we are killed, a small process in a session of its own kills those that were found."""
        assert self._guard is None
        command = [sys.executable, "-I", "-c", GUARD, *map(str, self.pids)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    async def end(self, grace_s: float) -> None:
        """None that was found runs any more: they had `grace_s` to end by themselves. The guard is gone too."""
        _, alive = await asyncio.to_thread(psutil.wait_procs, self._found, grace_s)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        await asyncio.to_thread(psutil.wait_procs, alive, KILL_TIMEOUT_S)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
