"""Start kills: workers of a planned fleet are killed while they start, once, and then again and again.

python -m tests.chaos.start_kills --json kills.json

Requests come all the time, more than one worker bears, so the planner orders more. First one ordered worker is killed
by SIGKILL while it starts. The fleet grows, and shrinks to one worker when the requests end. Then requests come again,
and each process of another ordered worker is killed before it serves, until the fleet has shrunk again. The exit status
is 1 if a request failed, if there were more workers than `max`, if the target turned without need, if the worker that
never comes was not reported or not replaced, if its process was started too often, if the fleet did not shrink to one
worker that serves, or if a decision or a period cannot be made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from core.events import ScaleDecided, ScaleFailed, WorkerStarting
from core.subjects import SCALE
from tests.actors.planning.planner_run import turns
from tests.chaos.planned_fleet import PlannedRun
from tests.e2e.deployment import Running, up
from tests.e2e.test_planner import Load
from tests.fixtures.eventually import eventually

ENGINE = {"prefill_us_per_token": 400, "capacity_blocks": 4096}
"""The prompts of `Load` take 400 ms: two workers can just compute them."""
MOST = 6
PLANNER = {
    "mode": "act",
    "slo": {"ttft_ms": 1000, "itl_ms": 100},
    "max": MOST,
    "period_s": 1,
    "down_window_s": 20,
    "startup_s": 4,
}
KILLED_ONCE, KILLED_ALWAYS = "decode-1", "decode-2"
ONCE_S, ALWAYS_S = 30.0, 90.0
"""Time in which requests come."""
LOOK_S = 0.05
GROWN_S = 60.0
SHRUNK_S = 240.0
"""Longest time until the fleet has one worker again. An order whose worker is gone is dropped after a while."""
TURNS_MAX = 2
"""Changes of direction in either part: up with the requests, down behind them, and once more for chance."""
BACKOFF_S = 30.0
"""Longest pause between two starts of a worker that dies (`api.deployment.supervisor`) …"""
SHORT_PAUSES = 6
"""… and the number of starts before that."""
FAILURES_KEPT = 10


class StartKills(PlannedRun, kw_only=True):
    """Findings of a run."""

    served: int = 0
    failed: int = 0
    kills_s: list[float] = msgspec.field(default_factory=list)
    """Times of the kills of the worker that never comes, since the first one."""
    killed_once: int = 0
    workers_max: int = 0
    """Processes of workers at once, those that drain included."""
    orders: int = 0
    overdue: list[str] = msgspec.field(default_factory=list)
    """Reasons of workers that did not come."""
    replaced_s: float = 0.0
    """Of the time in which requests came and one worker never did: the time in which as many workers served as the
    target …"""
    lacked_s: float = 0.0
    """… and in which fewer did, behind the first of these moments."""
    turns: list[int] = msgspec.field(default_factory=list)
    """Changes of direction of the target, in each part."""
    shrunk_s: float = 0.0
    """From the end of the last requests to a fleet of one worker that serves."""
    failures: list[str] = msgspec.field(default_factory=list)
    """The first FAILURES_KEPT of requests."""

    @property
    def is_good(self) -> bool:
        """Serving went on, and the worker that never came was reported, replaced, and not started in a hurry."""
        is_served = self.served > 0 and not self.failed
        is_bounded = self.workers_max <= MOST and max(self.turns, default=0) <= TURNS_MAX
        is_replaced = bool(self.overdue) and all(self.overdue) and self.replaced_s > self.lacked_s
        lasted_s = self.kills_s[-1] if self.kills_s else 0.0
        is_calm = self.killed_once == 1 < len(self.kills_s) <= SHORT_PAUSES + lasted_s / BACKOFF_S
        return is_served and is_bounded and is_replaced and is_calm and self.is_proved


class StartKiller:
    """Kills processes of one worker that do not serve yet, and notes how many workers there are."""

    def __init__(self, running: Running, found: StartKills) -> None:
        self._running = running
        self._found = found
        self._killed = set[int]()

    def __repr__(self) -> str:
        return f"<StartKiller, {len(self._killed)} killed>"

    @asynccontextmanager
    async def kills(self, name: str, most: int = 1_000_000) -> AsyncIterator[None]:
        """So many processes of that name are killed while they start."""
        killing = asyncio.create_task(self._kill(name, most))
        try:
            yield
        finally:
            killing.cancel()
            with suppress(asyncio.CancelledError):
                await killing

    async def _kill(self, name: str, most: int) -> None:
        loop, found, first_s = asyncio.get_running_loop(), self._found, 0.0
        left = most
        while True:
            run = self._running.run()
            workers = [part for part in (*run["parts"], *run["beside"]) if part["kind"] == "worker"]
            found.workers_max = max(found.workers_max, len(workers))
            for part in workers:
                if part["name"] != name or part["id"] is not None or part["pid"] in self._killed or not left:
                    continue
                left -= 1
                self._killed.add(part["pid"])
                with suppress(ProcessLookupError):
                    os.kill(part["pid"], signal.SIGKILL)
                first_s = first_s or loop.time()
                if name == KILLED_ONCE:
                    found.killed_once += 1
                else:
                    found.kills_s.append(round(loop.time() - first_s, 1))
            await asyncio.sleep(LOOK_S)


async def run(running: Running, once_s: float = ONCE_S, always_s: float = ALWAYS_S) -> StartKills:
    """Both parts. AssertionError if the fleet does not grow or shrink."""
    found = StartKills()
    killer, load = StartKiller(running, found), Load(running)
    loop = asyncio.get_running_loop()
    async with killer.kills(KILLED_ONCE, 1):
        requests = asyncio.create_task(load.run(once_s))
        await eventually(lambda: _ready(running) >= 2, "more workers", GROWN_S)
        await requests
        await eventually(lambda: _is_one(running), "a fleet of one", SHRUNK_S)
    first = len(await _targets(running))
    async with killer.kills(KILLED_ALWAYS):
        requests = asyncio.create_task(load.run(always_s))
        await _watch(running, requests, found)
        ended_s = loop.time()
        await eventually(lambda: _is_one(running), "a fleet of one beside a worker that never comes", SHRUNK_S)
        found.shrunk_s = round(loop.time() - ended_s, 1)
    found.served, found.failed = load.served, len(load.failed)
    found.failures = [str(each)[:300] for each in load.failed[:FAILURES_KEPT]]
    events = await running.events(SCALE)
    found.orders = sum(isinstance(event, WorkerStarting) for event in events)
    found.overdue = [event.reason for event in events if isinstance(event, ScaleFailed)]
    targets = await _targets(running)
    found.turns = [turns(targets[:first]), turns(targets[first:])]
    await found.prove(running)
    return found


async def _watch(running: Running, requests: asyncio.Task[None], found: StartKills) -> None:
    """Until the requests have ended, it is counted how long the fleet was whole."""
    loop = asyncio.get_running_loop()
    looked_s = loop.time()
    while not requests.done():
        state, now_s = running.state("planner-0"), loop.time()
        if state["ready"] >= state["decision"]["target"] > 1:
            found.replaced_s += now_s - looked_s
        elif found.replaced_s:
            found.lacked_s += now_s - looked_s
        looked_s = now_s
        await asyncio.sleep(LOOK_S)
    await requests
    found.replaced_s, found.lacked_s = round(found.replaced_s, 1), round(found.lacked_s, 1)


def _ready(running: Running) -> int:
    found: int = running.state("planner-0")["ready"]
    return found


def _is_one(running: Running) -> bool:
    state = running.state("planner-0")
    return bool(state["ready"] == state["decision"]["target"] == 1) and not running.run()["beside"]


async def _targets(running: Running) -> list[int]:
    return [event.target for event in await running.events(SCALE) if isinstance(event, ScaleDecided)]


def deployment(folder: Path) -> Path:
    """The file of the deployment."""
    file = folder / "planned.yaml"
    workers = [{"engine": "simulated", "count": 1, "engine_args": ENGINE}]
    file.write_text(json.dumps({"version": 1, "workers": workers, "planner": PLANNER}))
    return file


async def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.start_kills", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, dest="report")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="contrail-start-kills-"))
    try:
        async with up(folder / "data", "-f", str(deployment(folder))) as running:
            found = await run(running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found.report(options.report)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
