"""Kills at random: a seeded schedule of whom to kill when, within bounds that leave somebody to serve.

1. Each kind of part has a mean time between kills; the next kill of each kind is drawn when the last one was.
2. A kill waits until the bounds allow it: at most half of the front ends and half of the workers are down or fresh
   at a time, and of a cluster one node, which must have caught up before the next goes.
3. Everything is killed with SIGKILL; whoever supervises starts it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from core.errors import ContrailError
from tests.chaos.broker import broker_of
from tests.chaos.cluster import NODES, Cluster
from tests.e2e.deployment import Running

MEAN_S = {"frontend": 12.0, "worker": 12.0, "nats": 75.0, "etcd": 90.0}
"""Mean time between two kills of a kind …"""
NODE_MEAN_S = 40.0
"""… and of a cluster's nodes."""
LEADER_SHARE = 0.6
LOOK_S = 0.5
STEADY_S = 4.0
"""A part that has been ready for so long is known to all others."""
NODE_DOWN_S = (1.0, 10.0)


class Kill(NamedTuple):
    """One."""

    at_s: float
    kind: str
    name: str
    id: str


class Faults:
    """Runs until cancelled; `kills` tells what was done."""

    def __init__(
        self,
        running: Running,
        seed: int,
        say: Callable[[str], None],
        cluster: Cluster | None = None,
        means: Mapping[str, float] | None = None,
    ) -> None:
        """`means` are mean times between kills by kind, in seconds; a kind that is not named is left alone."""
        self.kills: list[Kill] = []
        self.started_s = 0.0
        """By the loop's clock: what the kills' times count from."""
        self._running = running
        self._random = Random(f"{seed}/faults")
        self._say = say
        self._cluster = cluster
        self._ready_since: dict[int, float] = {}
        means = means or (MEAN_S if cluster is None else {**MEAN_S, "nats": NODE_MEAN_S})
        self._due = {kind: self._random.expovariate(1 / mean) for kind, mean in means.items()}
        self._means = means
        self._node_task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many of each kind were killed."""
        return Counter(kill.kind for kill in self.kills)

    async def run(self) -> None:
        """Kills what is due, for ever."""
        self.started_s = asyncio.get_running_loop().time()
        try:
            while True:
                parts = await asyncio.to_thread(self._look)
                elapsed_s = asyncio.get_running_loop().time() - self.started_s
                for kind in [kind for kind, due_s in self._due.items() if due_s <= elapsed_s]:
                    if await self._kill_one(kind, parts, elapsed_s):
                        self._due[kind] = elapsed_s + self._random.expovariate(1 / self._means[kind])
                await asyncio.sleep(LOOK_S)
        finally:
            if self._node_task is not None:
                await self._node_task

    def _look(self) -> list[dict[str, Any]]:
        """All parts that run; notes since when each is ready."""
        parts = [part for part in self._running.run()["parts"] if part["pid"]]
        for part in parts:
            if part["pid"] not in self._ready_since and self._is_ready(part):
                self._ready_since[part["pid"]] = time.monotonic()
        return parts

    def _is_ready(self, part: dict[str, Any]) -> bool:
        if part["kind"] in {"nats", "etcd"}:
            return True
        try:
            return part["ops"] is not None and bool(self._running.get(part["ops"], "/ready"))
        except OSError:
            return False

    async def _kill_one(self, kind: str, parts: list[dict[str, Any]], elapsed_s: float) -> bool:
        """True if one of the kind was killed; False if the bounds forbid it now."""
        if kind == "nats" and self._cluster is not None:
            return await self._kill_node(self._cluster, elapsed_s)
        of_kind = [part for part in parts if part["kind"] == kind]
        now_s = time.monotonic()
        steady = [part for part in of_kind if now_s - self._ready_since.get(part["pid"], now_s) >= STEADY_S]
        if kind in {"frontend", "worker"} and len(steady) <= (self._wanted(kind) + 1) // 2:
            return False
        if not steady:
            return False
        victim = self._random.choice(sorted(steady, key=lambda part: str(part["name"])))
        os.kill(victim["pid"], signal.SIGKILL)
        self._killed(elapsed_s, kind, victim["name"], victim["id"] or "")
        return True

    def _wanted(self, kind: str) -> int:
        deployment = self._running.connection.deployment
        return deployment.frontend.replicas if kind == "frontend" else sum(group.count for group in deployment.workers)

    async def _kill_node(self, cluster: Cluster, elapsed_s: float) -> bool:
        if self._node_task is not None and not self._node_task.done():
            return False
        try:
            async with broker_of(self._running) as broker:
                if len(cluster.pids) < NODES or not await broker.replicas_current():
                    return False
                leader = await broker.leader("routing")
        except ContrailError:
            return False
        chosen = self._random.randrange(NODES)
        if self._random.random() < LEADER_SHARE and leader:
            chosen = int(leader.removeprefix("n"))
        cluster.kill_node(chosen)
        self._killed(elapsed_s, "nats", f"n{chosen}{' (leader of routing)' if leader == f'n{chosen}' else ''}", "")
        self._node_task = asyncio.create_task(self._start_later(cluster, chosen, self._random.uniform(*NODE_DOWN_S)))
        return True

    async def _start_later(self, cluster: Cluster, node: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        cluster.start_node(node)

    def _killed(self, at_s: float, kind: str, name: str, id: str) -> None:
        self.kills.append(Kill(at_s, kind, name, id))
        self._say(f"{at_s:6.1f} s  killed {name}")
