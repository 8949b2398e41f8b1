"""Chaos: a deployment under load while everything in it is killed at random, and what must be true afterwards.

python -m tests.chaos --minutes 10 --replicas 8 --workers 4 --seed 1 --json chaos.json
python -m tests.chaos --minutes 10 --cluster        the log on three NATS servers, whose leader is killed too

It ends by itself and leaves no process; exit status 1 if any law was broken. The seed fixes who is killed when and
what is asked; what happens in between is the machine's.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.cluster import Cluster
from tests.chaos.complaints import SHOWN_MAX, complaints
from tests.chaos.faults import LOOK_S, Faults
from tests.chaos.load import BROKE, Load
from tests.chaos.record import LogRecord
from tests.chaos.reports import Reports
from tests.chaos.rest import Rest, tried
from tests.chaos.watch import Memory
from tests.e2e.deployment import Running, up

PROGRESS_EVERY_S = 5.0
CALM_S = 5.0
"""Load without faults before the first kill, and after the last."""
ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
DYING_S = 2.0
"""So long after its kill a front end's connections may be found broken, with as many processes as here."""
SNAPSHOT_EVERY = "1m"
"""Most front ends that come back start from one."""


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--clients", type=int, default=32, help="at most so many requests at a time")
    parser.add_argument("--cluster", action="store_true", help="three NATS servers, every stream on all of them")
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    parser.add_argument("--keep", type=Path, help="leave the data folder there, for a look at logs")
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-chaos-"))
    try:
        async with _cluster(folder, wanted) as cluster:
            words = ["-f", str(_file(folder, wanted, cluster))]
            async with up(folder / "data", *words) as running:
                findings = await _chaos(running, wanted, cluster)
    finally:
        if wanted.keep:
            shutil.copytree(folder / "data" / "logs", wanted.keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1, default=str) + "\n")
    _show(findings)
    return 1 if findings["wrong"] else 0


@asynccontextmanager
async def _cluster(folder: Path, wanted: argparse.Namespace) -> AsyncIterator[Cluster | None]:
    if not wanted.cluster:
        yield None
        return
    cluster = Cluster(folder / "cluster")
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def _file(folder: Path, wanted: argparse.Namespace, cluster: Cluster | None) -> Path:
    log: dict[str, Any] = {"max_bytes": "2GiB", "snapshot_every": SNAPSHOT_EVERY}
    if cluster is not None:
        access = {"user": cluster.credentials.user, "password": cluster.credentials.password}
        log |= {"nats": cluster.urls, "credentials": access, "replicas": 3}
    workers = [{"engine": "simulated", "count": wanted.workers, "engine_args": ENGINE_ARGS}]
    deployment = {"version": 1, "log": log, "frontend": {"replicas": wanted.replicas}, "workers": workers}
    file = folder / "chaos.yaml"
    file.write_text(json.dumps(deployment))
    return file


async def _chaos(running: Running, wanted: argparse.Namespace, cluster: Cluster | None) -> dict[str, Any]:
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    load = Load(host, int(port), wanted.seed, wanted.clients, wanted.rate)
    faults = Faults(running, wanted.seed, _say, cluster)
    memory = Memory(running, lambda: cluster.pids if cluster else {})
    watching = [asyncio.create_task(memory.run()), asyncio.create_task(_progress(load, faults))]
    try:
        await asyncio.sleep(CALM_S)
        try:
            async with asyncio.timeout(wanted.minutes * 60):
                await faults.run()
        except TimeoutError:
            _say("no more kills")
        await asyncio.sleep(CALM_S)
    finally:
        await load.stop()
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
    findings = await _verified(running, wanted, load, faults)
    memory.sample()
    found = complaints(running.data / "logs")
    return findings | {"memory": memory.now, "memory_most": dict(memory.most), "complaints": dict(found)}


async def _progress(load: Load, faults: Faults) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(load.counts.items()))
        _say(f"          requests: {counts or 'none'}; {len(load.unmended)} failed; kills: {dict(faults.counts)}")


async def _verified(running: Running, wanted: argparse.Namespace, load: Load, faults: Faults) -> dict[str, Any]:
    """Every law, by name, with what broke it."""
    rest = Rest(running, wanted.replicas, wanted.workers)
    _say("verifying: rest, ends, consumers")
    laws: dict[str, list[str]] = {"all parts come to rest": await rest.reached()}
    laws["who is gone has its end in the log"] = await tried(rest.ends_missing(), "ends")
    laws["all replicas are equal at rest"] = await tried(rest.reached(), "rest")
    laws["a fold from zero is what replicas and caches hold"] = await tried(rest.fold_differs(), "the fold")
    laws["no consumer is left behind"] = await tried(rest.consumers_left(), "consumers")
    _say("verifying: the log")
    record = await rest.record()
    reports = Reports(record)
    laws |= {
        "no request failed but those whose front end was killed": _unmended(load),
        "a connection broke only where a front end was killed": _unexplained(load, faults, record, rest.alive),
        "no chain has a gap or a repeat": record.broken_chains(),
        "every message is stored once": record.stored_twice(),
        "nobody writes on another's subject": record.foreign_messages(),
        "an end is told once": record.ends_told_twice(),
        "every decision of an answered request is in the log once": record.decisions_missing(load.answered()),
        "every attempt of a front end that lived has its end": record.finishes_missing(rest.alive),
        "what was acknowledged is in the log": record.heads_unknown() + reports.heads_unknown(),
        "replicas are equal at every agreed cursor": reports.differences() + reports.divergences(),
    }
    slow_s = sorted(attempt.took_s for attempt in load.attempts)
    return {
        "wrong": sum(bool(found) for found in laws.values()),
        "laws": laws,
        "requests": dict(load.counts),
        "failed": [attempt._asdict() for attempt in load.unmended],
        "broken": sum(attempt.outcome == BROKE for attempt in load.attempts),
        "broken_again": load.broke_again,
        "slowest_s": slow_s[-1] if slow_s else 0,
        "p50_s": slow_s[len(slow_s) // 2] if slow_s else 0,
        "kills": dict(faults.counts),
        "schedule": [kill._asdict() for kill in faults.kills],
        "messages": len(record.entries),
        "decisions": len(record.routed),
        "migrated": record.migrated,
        "told_by_journals": len(record.told),
        "points_reported": reports.points,
        "points_compared": reports.compared,
        "consumers_s": rest.consumers_s,
        "seed": wanted.seed,
    }


def _unmended(load: Load) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for attempt in load.unmended:
        kinds.setdefault(attempt.outcome, []).append(f"{attempt.request} at {attempt.sent_s:.1f}: {attempt.detail}")
    return [f"{len(found)} {outcome}: {found[:4]}" for outcome, found in kinds.items()]


def _unexplained(load: Load, faults: Faults, record: LogRecord, alive: set[str]) -> list[str]:
    """Broken connections to front ends that the log knows to have lived; or, without a decision, at no kill's time."""
    by = {request: replicas[0] for (request, _), replicas in record.routed.items()}
    lived = alive | record.left
    kills_s = [faults.started_s + kill.at_s for kill in faults.kills if kill.kind == "frontend"]
    wrong = []
    for attempt in load.attempts:
        broke_s = attempt.sent_s + attempt.took_s
        if attempt.outcome != BROKE or by.get(attempt.request, "") in record.ended - lived:
            continue
        if attempt.request in by or not any(-LOOK_S < broke_s - kill_s < DYING_S for kill_s in kills_s):
            wrong.append(attempt.request)
    return [f"{len(wrong)}: {wrong[:4]}"] if wrong else []


def _show(findings: dict[str, Any]) -> None:
    print()
    for law, found in findings["laws"].items():
        print(f"  {'WRONG' if found else 'holds'}  {law}")
        for sentence in found:
            print(f"         - {sentence[:1500]}")
    print(f"\n  requests  {findings['requests']}, slowest {findings['slowest_s']:.1f} s, p50 {findings['p50_s']:.2f} s")
    print(f"  kills     {findings['kills']}")
    print(f"  log       {findings['messages']} messages, {findings['decisions']} decisions, ", end="")
    print(f"{findings['points_reported']} points reported, {findings['points_compared']} compared, ", end="")
    print(f"{findings['migrated']} answers migrated, {findings['told_by_journals']} journals told")
    print(f"  readers   of those who are gone: forgotten {findings['consumers_s']:.0f} s after all was at rest")
    print("  memory    " + ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(findings["memory"].items())))
    for text, count in sorted(findings["complaints"].items(), key=lambda item: -item[1])[:SHOWN_MAX]:
        print(f"  said {count:5d} times  {text}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
