"""Planner faults: a planned fleet whose planner has a clock that is an hour ahead, loses NATS and etcd for a while, and
is killed between a decision and its order.

python -m tests.chaos.planner_faults --json faults.json

Requests come all the time. NATS is away, then etcd. Then the settings ask for one worker more and etcd is killed at
once: the planner's next decision stands in the log, its order nowhere, and the planner is killed. The exit status is 1
if a request failed, if the fleet shrank behind a gap in the decisions, if the missing worker was not ordered by the
next planner, if a period has times of the wrong clock, or if a decision or a period cannot be made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from actors.planning.fleet_target import TARGET_KEY, FleetTarget
from actors.planning.planner_settings import PLANNER_SETTINGS_KEY
from api.process.planes import open_registry
from core.clock import SystemClock
from core.events import DemandRolled, ScaleDecided
from core.subjects import SCALE
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from tests.actors.planning.planner_run import turns
from tests.chaos.planned_fleet import PlannedRun
from tests.e2e.deployment import Running, up
from tests.e2e.test_planner import Load
from tests.fixtures.eventually import eventually

ENGINE = {"prefill_us_per_token": 400, "capacity_blocks": 4096}
PROMPT_TOKENS = 600
"""240 ms: five a second are more than one worker's work."""
LEAST, MOST = 1, 6
DOWN_WINDOW_S = 30
PLANNER = {
    "mode": "act",
    "slo": {"ttft_ms": 1000, "itl_ms": 100},
    "min": LEAST,
    "max": MOST,
    "period_s": 1,
    "down_window_s": DOWN_WINDOW_S,
    "startup_s": 4,
}
AWAY_S = 20.0
LOAD_S = 200.0
GROWN_S = 60.0
SETTLED_S = 120.0
BACK_S = 60.0
"""Longest time until decisions go on: a claim of a killed planner stays for its lease."""
HEARD_S = 0.1
"""Time in which the planner hears of new settings …"""
DECIDED_S = 4.0
"""… and in which it decides by them."""
TRIES_MAX = 6
"""A claim between the settings and the next decision gives the lead up without a decision."""
GAP_MS = 8_000
"""Between two decisions, with a period of a second on a busy machine: more is a gap."""
CLOCK_AHEAD_S = 3600
CLOCK_OFF_MAX_MS = 60_000
FAILURES_KEPT = 10
WRONG_CLOCK = f"""
import sys, time

if "planner" in sys.orig_argv:
    now_ns, now = time.time_ns, time.time
    time.time_ns = lambda: now_ns() + {CLOCK_AHEAD_S} * 1_000_000_000
    time.time = lambda: now() + {CLOCK_AHEAD_S}
"""
"""Python imports it at its start, as `sitecustomize`."""


class PlannerFaults(PlannedRun, kw_only=True):
    """Findings of a run."""

    served: int = 0
    failed: int = 0
    offset_ms: int = 0
    """The planner's clock less the broker's, as the planner sees it."""
    gaps_s: list[float] = msgspec.field(default_factory=list)
    """Times without a decision."""
    shrunk_behind_gaps: int = 0
    """Decisions for fewer workers before the window for shrinking was full again."""
    turns: int = 0
    """Changes of direction of the target, changed settings included."""
    late_periods: int = 0
    """Periods whose time is not that of the broker."""
    lost_order: int = 0
    """Workers of the decision that the killed planner did not order …"""
    ordered_before: int = 0
    """… workers of the order that was in etcd then …"""
    ordered_after: int = 0
    """… and at the end."""
    ready_after: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    """The first FAILURES_KEPT of requests."""

    @property
    def is_good(self) -> bool:
        """All faults were met, serving went on, and the fleet kept its workers."""
        is_served = self.served > 0 and not self.failed
        is_met = len(self.gaps_s) >= 3 and abs(self.offset_ms - 1000 * CLOCK_AHEAD_S) < CLOCK_OFF_MAX_MS
        is_kept = not self.shrunk_behind_gaps and not self.late_periods
        is_ordered = self.ordered_before < self.lost_order <= self.ordered_after and self.ready_after >= self.lost_order
        return is_served and is_met and is_kept and is_ordered and self.is_proved


class FaultSite:
    """The deployment with servers that the program itself holds."""

    def __init__(self, folder: Path) -> None:
        self.nats = EmbeddedNats(folder / "nats")
        self.etcd = EmbeddedEtcd(folder / "etcd")
        self.found = PlannerFaults()
        self.running: Running
        self._folder = folder

    def __repr__(self) -> str:
        return f"<FaultSite in {self._folder}>"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FaultSite]:
        """It serves; at the end no process is left."""
        try:
            await self.nats.start()
            await self.etcd.start()
            with wrong_clock(self._folder):
                async with up(self._folder / "data", "-f", str(self._file())) as self.running:
                    yield self
        finally:
            await self.etcd.stop()
            await self.nats.stop()

    def _file(self) -> Path:
        login = self.etcd.credentials
        log: dict[str, Any] = {"nats": [self.nats.url], "etcd": [self.etcd.endpoint], "max_bytes": "1GiB"}
        log |= {"credentials": {"nkey": str(self.nats.credentials.nkey_file)}}
        log |= {"etcd_credentials": {"user": login.user, "password": login.password}}
        workers = [{"engine": "simulated", "count": LEAST, "engine_args": ENGINE}]
        file = self._folder / "faults.yaml"
        file.write_text(json.dumps({"version": 1, "log": log, "workers": workers, "planner": PLANNER}))
        return file

    async def run(self, load_s: float = LOAD_S) -> PlannerFaults:
        """All faults under load. AssertionError if the planner does not go on after one."""
        running, found, begin_ms = self.running, self.found, SystemClock().wall_ms()
        load = Load(running, prompt_tokens=PROMPT_TOKENS)
        requests = asyncio.create_task(load.run(load_s))
        await eventually(lambda: self._state()["ready"] > LEAST, "a larger fleet", GROWN_S)
        await eventually(lambda: self._state()["ordered"] < MOST, "room for one more behind the first burst", SETTLED_S)
        found.offset_ms = self._state()["clock"]["offset_ms"]
        for server in (self.nats, self.etcd):
            await server.stop(keep_port=True)
            await asyncio.sleep(AWAY_S)
            await server.start()
            await self._decides_again()
        await self._kill_in_the_middle()
        await requests
        found.ordered_after, found.ready_after = self._state()["ordered"], self._state()["ready"]
        found.served, found.failed = load.served, len(load.failed)
        found.failures = [str(each)[:300] for each in load.failed[:FAILURES_KEPT]]
        await self._read_stream(begin_ms)
        await found.prove(running)
        return found

    def _state(self) -> dict[str, Any]:
        return self.running.state("planner-0")

    async def _decides_again(self) -> None:
        """A decision is made from here on. One of before may come late to the log."""
        from_ms = SystemClock().wall_ms()
        async with asyncio.timeout(BACK_S):
            while (await self._decided())[-1].at_ms <= from_ms:
                await asyncio.sleep(0.5)

    async def _decided(self) -> list[ScaleDecided]:
        return [event for event in await self.running.events(SCALE) if isinstance(event, ScaleDecided)]

    async def _kill_in_the_middle(self) -> None:
        """The planner is dead between a decision for one worker more and its order; the next one orders it."""
        for _ in range(TRIES_MAX):
            await eventually(lambda: self._state()["ordered"] < MOST, "room for one more", SETTLED_S)
            more: int = self._state()["ordered"] + 1
            if await self._killed_before_its_order(more):
                await self._decides_again()
                await eventually(lambda: self._state()["ready"] >= self.found.lost_order, "the missing worker", BACK_S)
                return
            await self._decides_again()
            await self._set_least(LEAST)
        raise AssertionError("no decision fell between settings and etcd's end")

    async def _killed_before_its_order(self, more: int) -> bool:
        """True if the decision stands in the log and its order nowhere."""
        await self._set_least(more)
        await asyncio.sleep(HEARD_S)
        self.etcd.kill()
        is_decided = await self._is_decided(more)
        if is_decided:
            os.kill(self.running.part("planner-0")["pid"], signal.SIGKILL)
        await self.etcd.start()
        async with open_registry(self.running.connection) as registry:
            (change,) = [each for each in await registry.get(TARGET_KEY) if each.key == TARGET_KEY]
        assert change.value is not None
        self.found.lost_order, self.found.ordered_before = more, FleetTarget.parse(change.value).workers
        return is_decided and self.found.ordered_before < more

    async def _set_least(self, workers: int) -> None:
        """As `contrail scale set min` does, in a moment."""
        async with open_registry(self.running.connection) as registry:
            await registry.put(PLANNER_SETTINGS_KEY, json.dumps({"min": workers}).encode())

    async def _is_decided(self, workers: int) -> bool:
        """True if a decision for so many workers stands in the log in time."""
        until_s = asyncio.get_running_loop().time() + DECIDED_S
        while asyncio.get_running_loop().time() < until_s:
            if (await self._decided())[-1].target >= workers:
                return True
            await asyncio.sleep(0.2)
        return False

    async def _read_stream(self, begin_ms: int) -> None:
        """Gaps, turns, and times of another clock are counted."""
        end_ms, found = SystemClock().wall_ms(), self.found
        events = await self.running.events(SCALE)
        decided = [event for event in events if isinstance(event, ScaleDecided)]
        found.turns = turns(each.target for each in decided)
        gap_ms: int | None = None
        for before, after in pairwise(decided):
            if after.at_ms - before.at_ms > GAP_MS:
                gap_ms = after.at_ms
                found.gaps_s.append((after.at_ms - before.at_ms) / 1000)
            is_early = gap_ms is not None and after.at_ms - gap_ms < 1000 * DOWN_WINDOW_S
            found.shrunk_behind_gaps += is_early and after.target < before.target
        first_ms, last_ms = begin_ms - CLOCK_OFF_MAX_MS, end_ms + CLOCK_OFF_MAX_MS
        rolled = [event for event in events if isinstance(event, DemandRolled)]
        found.late_periods = sum(not first_ms <= each.at_ms <= last_ms for each in rolled)


@contextmanager
def wrong_clock(folder: Path) -> Iterator[None]:
    """Planners that are started in it have a clock that is CLOCK_AHEAD_S ahead; this process and others do not."""
    (folder / "clock").mkdir()
    (folder / "clock" / "sitecustomize.py").write_text(WRONG_CLOCK)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(folder / "clock"), before) if part)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


async def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.planner_faults", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, dest="report")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="contrail-planner-faults-"))
    try:
        async with FaultSite(folder).open() as site:
            found = await site.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found.report(options.report)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
