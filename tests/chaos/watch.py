"""Samples of a running deployment: memory and open files of every process, over time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from tests.chaos.processes import open_files, rss_bytes
from tests.e2e.deployment import Running

SAMPLE_EVERY_S = 5.0


class Memory:
    """The most that any process of each name had, and what it has now; runs until cancelled."""

    def __init__(self, running: Running, others: Callable[[], dict[str, int]] = dict) -> None:
        """`others` are processes beside the deployment, by name."""
        self.most: dict[str, int] = defaultdict(int)
        self.now: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self._running = running
        self._others = others

    async def run(self) -> None:
        """Samples, for ever."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_EVERY_S)

    def sample(self) -> None:
        """One look at every process."""
        pids = {part["name"]: part["pid"] for part in self._running.run()["parts"]}
        pids |= {"contrail up": self._running.process.pid, **self._others()}
        self.now = {name: rss_bytes(pid) for name, pid in pids.items()}
        self.files = {name: open_files(pid) for name, pid in pids.items()}
        for name, size in self.now.items():
            self.most[name] = max(self.most[name], size)
