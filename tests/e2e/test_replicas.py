"""Several replicas on one port: they agree, one of them is killed -9, and it is back in a second."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from core.events import ReplicaJoined
from tests.chaos.load import BROKE, Load
from tests.chaos.part import Part
from tests.chaos.processes import cpu_s
from tests.chaos.record import LogRecord
from tests.chaos.reports import Reports
from tests.chaos.rest import Rest
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

REPLICAS, WORKERS = 3, 2
REPORTED_S = 30.0
"""Reports come every 5 s."""
LEASES_S = 60.0
"""Longer than it takes to find a replica lost."""
START_OVER_IMPORTS = 2.0
"""What a replica may take of the processor from its start to readiness, by what its imports take …"""
STARTS_MAX = 3
"""… in the best of so many starts: a shared machine is slow for seconds at a time."""


async def test_replicas_agree_and_survive_each_other(tmp_path: Path) -> None:
    """Equal digests at rest and in what they report; after a kill -9 the others' streams go on, every decision is in
    the log, the dead one's end too, and nothing of it is in flight in any fold; a new one starts from a snapshot."""
    file = tmp_path / "three.yaml"
    workers = [{"engine": "simulated", "count": WORKERS, "engine_args": {"capacity_blocks": 256, "eos_every": 0}}]
    deployment = {"version": 1, "frontend": {"replicas": REPLICAS}, "workers": workers, "log": {"max_bytes": "1GiB"}}
    file.write_text(json.dumps(deployment))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        host, _, port = running.url.removeprefix("http://").rpartition(":")
        load = Load(host, int(port), seed=1, clients=16, per_s=30.0)
        try:
            await eventually(lambda: len(load.answered()) > 100, "load", 60)
            killed = _kill(running, "frontend-1")
            await eventually(lambda: _id(running, "frontend-1") not in {None, killed}, "frontend-1 again", 60)
            answered = len(load.answered())
            await eventually(lambda: len(load.answered()) > answered + 100, "more load", 60)
        finally:
            await load.stop()
        rest = Rest(running, REPLICAS, WORKERS)
        await _others_went_on(load, rest, killed)
        await _the_dead_one_is_over(rest, killed)
        await _all_agree(rest)
        await _starts_in_a_second(running, tmp_path)


def _kill(running: Running, name: str) -> str:
    """It is dead; returns who it was."""
    part = running.part(name)
    os.kill(part["pid"], signal.SIGKILL)
    return str(part["id"])


def _id(running: Running, name: str) -> str | None:
    return next((part["id"] for part in running.run()["parts"] if part["name"] == name), None)


async def _others_went_on(load: Load, rest: Rest, killed: str) -> None:
    """What broke was the dead one's, one retry mended it, and every answer's decision is in the log."""
    assert load.unmended == []
    assert load.broke_again == 0
    assert await rest.reached() == []
    record = await rest.record()
    broke = [attempt.request for attempt in load.attempts if attempt.outcome == BROKE]
    assert {by[0] for (request, _), by in record.routed.items() if request in broke} <= {killed}
    assert record.decisions_missing(load.answered()) == []
    assert record.finishes_missing(rest.alive) == []
    assert record.broken_chains() + record.stored_twice() == []


async def _the_dead_one_is_over(rest: Rest, killed: str) -> None:
    """Its end is in the log, once, and its requests in flight have left every fold."""
    await _until_ended(rest, killed)
    assert await rest.reached() == []
    assert await rest.fold_differs() == []  # looks at what is in flight, too
    assert (await rest.record()).ends_told_twice() == []


async def _until_ended(rest: Rest, killed: str) -> LogRecord:
    deadline_s = time.monotonic() + LEASES_S
    while killed not in (record := await rest.record()).ended:
        assert time.monotonic() < deadline_s, f"no end of {killed} in the log"
    return record


async def _all_agree(rest: Rest) -> None:
    """Replicas report their folds, at cursors where others do, and never differ."""
    deadline_s = time.monotonic() + REPORTED_S
    while True:
        record = await rest.record()
        reports = Reports(record)
        if reports.compared or time.monotonic() > deadline_s:
            break
    joined = {entry.owner for entry, event in record.events() if isinstance(event, ReplicaJoined)}
    assert len(joined) == REPLICAS + 1
    assert reports.compared > 0, f"{reports.points} points were reported, none by two replicas"
    assert reports.differences() + reports.heads_unknown() + reports.divergences() == []


async def _starts_in_a_second(running: Running, folder: Path) -> None:
    """From a snapshot, another front end is ready after little more than its imports."""
    taken = contrail("snapshots", "take", "--data", str(running.data), "--json")
    assert taken.returncode == 0, taken.stderr
    for number in range(STARTS_MAX):
        used_s, started_from = await _started(running, folder, f"late-{number}")
        assert started_from == json.loads(taken.stdout)["id"]
        if used_s < START_OVER_IMPORTS * (imports_s := await asyncio.to_thread(_imports_s)):
            return
    raise AssertionError(f"each of {STARTS_MAX} starts took much more CPU than {imports_s:.2f} s of imports")


def _imports_s() -> float:
    """The CPU seconds that the imports of a front end take now."""
    program = "import time, api.process.frontend; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, check=True).stdout)


async def _started(running: Running, folder: Path, name: str) -> tuple[float, str]:
    """The CPU seconds until another front end was ready, and the snapshot from which it started."""
    words = ["frontend", "--data", str(running.data), "--name", name, "--listen", "127.0.0.1:0"]
    late = Part(name, folder / f"{name}.log", words)
    began_s = time.monotonic()
    try:
        await late.start()
        took_s, used_s, state = time.monotonic() - began_s, cpu_s(late.pid), late.state()
    finally:
        await late.stop()
    sys.stderr.write(f"ready {took_s:.2f} s after exec, {used_s:.2f} s of CPU, from {state['started_from']}\n")
    return used_s, str(state["started_from"])
