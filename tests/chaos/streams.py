"""Answers that stream while their workers are killed, stopped and drained: every text compared, every pause measured.

python -m tests.chaos.streams --json streams.json
python -m tests.chaos.streams --streams 40 --seconds 30 --fault killed --hang-ups 0
python -m tests.chaos.streams --engine vllm --streams 8 --workers 2 --seconds 240 --every 40 --fault killed

Four phases: faults while so many streams are in flight all the time, each on a worker that answers some of them; all
workers killed at once, which must be a clear error soon; as many streams as before, undisturbed; and clients that hang
up, after which nothing may be left. It ends by itself and leaves no process; exit status 1 if anything was not as it
should be.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.events import RequestMigrated
from core.subjects import ROUTING
from tests.chaos.complaints import SHOWN_MAX, complaints
from tests.chaos.disagg_engines import KINDS, judge_of
from tests.chaos.disagg_site import Worker
from tests.chaos.streams_findings import PAUSE_HUNG_MAX_S, PAUSE_MAX_S, moved, summary
from tests.chaos.streams_load import StreamLoad, StreamTally
from tests.chaos.streams_site import END_S, StreamSite, stream_site
from tests.fixtures.eventually import eventually

FAULTS = ("killed", "stopped", "drained")
HUNG, CRASHED = "hung", "crashed"
"""Only the engine is stopped, or killed: with `--engine vllm` it has a process of its own."""
STOPPED_S = 7.5
"""Longer than a replica listens to a silent worker (`actors.membership.failure_detector.SILENT_S`), shorter than its
lease and that."""
OUTAGE_AFTER_S = 0.5
"""Streams that are to lose all workers have been in flight for so long."""
ERROR_WITHIN_S = 10.0
"""How long a stream may be silent without a worker until its error comes."""
SIMULATED = {"decode_us_per_step": 100_000, "capacity_blocks": 8192, "max_seqs": 256}
MEMORY_MAX = 48 * 1024 * 1024
"""What the second half of the hang-ups may add to a process: allocators keep some of what they had."""
STATEFUL = {"simulated": 25, "vllm": 0}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.streams", description=text)
    parser.add_argument("--streams", type=int, default=200, help="so many in flight")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults")
    parser.add_argument("--every", type=float, default=3.0, help="seconds before each fault")
    kinds = [*FAULTS, HUNG, CRASHED]
    parser.add_argument("--fault", action="append", choices=kinds, help="only this one; may be given again")
    parser.add_argument("--max-tokens", type=int, default=300, help="of each answer")
    parser.add_argument("--step-ms", type=float, default=0.0, help="a decode step of a simulated engine")
    parser.add_argument("--hang-ups", type=int, default=1000)
    parser.add_argument("--no-outage", action="store_true", help="never kill all workers at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=KINDS, default="simulated")
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    parser.add_argument("--keep", type=Path, help="leave the parts' logs there")
    return parser.parse_args(given)


async def main(wanted: argparse.Namespace, folder: Path | None = None) -> dict[str, Any]:
    """The findings; `violations` is empty if all was as it should be. Works in the folder, or in one of its own."""
    kind, own = KINDS[wanted.engine], folder is None
    folder = folder or Path(tempfile.mkdtemp(prefix="contrail-streams-"))
    args = dict(kind.args) | (SIMULATED if kind.name == "simulated" else {})
    if wanted.step_ms and kind.name == "simulated":
        args["decode_us_per_step"] = int(wanted.step_ms * 1000)
    try:
        async with stream_site(folder, kind, args, wanted.workers, wanted.seed) as site:
            findings = await _tried(site, wanted)
        findings["complaints"] = complaints(folder / "data" / "logs")
    finally:
        if wanted.keep:
            shutil.copytree(folder / "data" / "logs", wanted.keep, dirs_exist_ok=True)
        if own:
            shutil.rmtree(folder, ignore_errors=True)
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1, default=str) + "\n")
    return findings


async def _tried(site: StreamSite, wanted: argparse.Namespace) -> dict[str, Any]:
    """All phases, one after the other."""
    judge, violations = judge_of(site.kind), list[str]()
    await judge.start(site.model)
    load = StreamLoad(site.running.url, judge, wanted.max_tokens, wanted.seed, stateful=STATEFUL[site.kind.name])
    findings: dict[str, Any] = {"engine": site.kind.name, "seed": wanted.seed, "streams": wanted.streams}
    try:
        load.start(wanted.streams)
        faults, hit = await _harmed(site, wanted, violations)
        await load.finish()
        await site.whole()
        pause_max_s = PAUSE_HUNG_MAX_S if HUNG in faults else PAUSE_MAX_S
        findings |= {"faults": dict(faults), "requests_hit": hit}
        findings["disturbed"] = summary(load.tally, violations, pause_max_s)
        migrated = [event for event in await site.running.events(ROUTING) if isinstance(event, RequestMigrated)]
        findings |= {"migrations": len(migrated), "moved": moved(migrated, load.tally)}
        if faults and not migrated:
            violations.append("no stream went on with another worker: the faults harmed nobody")
        _say(f"faults: {findings}")
        if not wanted.no_outage:
            findings["outage"] = await _without_workers(site, load, wanted.streams, violations)
        if wanted.hang_ups:
            findings["hang_ups"] = await _hung_up(site, load, wanted, violations)
        violations += await site.idle()
        violations += await site.in_flight()
    finally:
        await judge.stop()
    return findings | {"violations": violations}


async def _harmed(
    site: StreamSite, wanted: argparse.Namespace, violations: list[str]
) -> tuple[Counter[str], list[int]]:
    """One fault after the other, each on a worker that answers somebody; half of them are always left alone.

    How often each was, and how many requests each worker had.
    """
    counts, hit, under_way = Counter[str](), list[int](), set[asyncio.Task[None]]()
    until_s, within_s = time.monotonic() + wanted.seconds, END_S + site.kind.start_s
    for fault in itertools.cycle(wanted.fault or FAULTS):
        if time.monotonic() >= until_s:
            break
        await asyncio.sleep(wanted.every)
        await eventually(lambda: len(site.well) > max(1, wanted.workers // 2), "workers that are well", within_s)
        worker, requests = await site.busy()
        under_way.add(asyncio.create_task(_harm(site, fault, worker)))
        counts[fault] += 1
        hit.append(requests)
    results = await asyncio.gather(*under_way, return_exceptions=True)
    violations += [f"a fault went wrong: {result!r}" for result in results if result is not None]
    return counts, hit


async def _harm(site: StreamSite, fault: str, worker: Worker) -> None:
    if fault == "killed":
        await site.killed(worker)
    elif fault == HUNG:
        await site.engine_harmed(worker, signal.SIGSTOP)
    elif fault == CRASHED:
        await site.engine_harmed(worker, signal.SIGKILL)
    elif fault == "drained":
        await site.drained(worker)
    else:
        await site.slept(worker, STOPPED_S)


async def _without_workers(site: StreamSite, load: StreamLoad, streams: int, violations: list[str]) -> dict[str, Any]:
    """Streams whose every worker is gone end with a clear error, soon; afterwards as many are whole again."""
    load.tally = StreamTally()
    asking = asyncio.create_task(load.once(streams))
    await asyncio.sleep(OUTAGE_AFTER_S)
    began_s = time.monotonic()
    await site.all_killed()
    await asking
    took_s = round(load.tally.last_s - began_s, 1)
    outage = summary(load.tally, violations, whole=False)
    if took_s > ERROR_WITHIN_S:
        violations.append(f"without a worker the last stream ended after {took_s} s")
    await site.whole()
    load.tally = StreamTally()
    await load.once(streams)
    after = summary(load.tally, violations)
    _say(f"outage: {outage}, afterwards {after}")
    return {"error_after_s": took_s, "during": outage, "after": after}


async def _hung_up(
    site: StreamSite, load: StreamLoad, wanted: argparse.Namespace, violations: list[str]
) -> dict[str, Any]:
    """Hang-ups leave nothing, and the second half of them no more memory than the first."""
    half = wanted.hang_ups // 2
    await load.hang_ups(half)
    violations += await site.idle()
    before = site.memory()
    await load.hang_ups(wanted.hang_ups - half)
    began_s = time.monotonic()
    violations += await site.idle()
    idle_s = round(time.monotonic() - began_s, 2)
    grown = {name: size - before[name] for name, size in site.memory().items()}
    violations += [f"{name} grew by {size >> 20} MiB" for name, size in grown.items() if size > MEMORY_MAX]
    return {"count": wanted.hang_ups, "idle_after_s": idle_s, "grown_bytes": grown}


def _say(line: str) -> None:
    print(line, flush=True)


async def _until_told_to_end() -> int:
    """The exit status; SIGTERM ends it as Ctrl-C does, and leaves no process either."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    findings = await main(arguments())
    for sentence in findings["violations"][:SHOWN_MAX]:
        _say(f"VIOLATED  {sentence[:1000]}")
    for text, times in sorted(findings["complaints"].items(), key=lambda item: -item[1])[:SHOWN_MAX]:
        _say(f"said {times:5d} times  {text}")
    shown = {key: value for key, value in findings.items() if key not in {"complaints", "violations"}}
    _say(json.dumps(shown, indent=1, default=str))
    return 1 if findings["violations"] else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(_until_told_to_end()))
