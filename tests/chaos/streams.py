"""Answers that stream while their workers are killed, stopped and drained: every text compared, every pause measured.

python -m tests.chaos.streams --json streams.json
python -m tests.chaos.streams --streams 40 --seconds 30 --fault killed --hang-ups 0
python -m tests.chaos.streams --engine vllm --streams 8 --workers 2 --seconds 240 --every 40 --fault killed

Four phases: faults while so many streams are in flight all the time; all workers killed at once, which must be a clear
error soon; as many streams as before, undisturbed; and clients that hang up, after which nothing may be left. It ends
by itself and leaves no process; exit status 1 if anything was not as it should be.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.engine_health import ENGINE_STALL_S
from core.events import RequestMigrated
from core.subjects import ROUTING
from tests.chaos.complaints import SHOWN_MAX, complaints
from tests.chaos.disagg_engines import KINDS, judge_of
from tests.chaos.disagg_site import Worker
from tests.chaos.streams_load import StreamLoad, StreamTally
from tests.chaos.streams_site import END_S, StreamSite, stream_site
from tests.fixtures.eventually import eventually

FAULTS = ("killed", "stopped", "drained")
HUNG = "hung"
"""Only the engine is stopped: with `--engine vllm` it has a process of its own."""
STOPPED_S = 7.5
"""Longer than a replica listens to a silent worker (`actors.suspicion.SILENT_S`), shorter than its lease and that."""
OUTAGE_AFTER_S = 0.5
"""Streams that are to lose all workers have been in flight for so long."""
ERROR_WITHIN_S = 15.0
"""How long a stream may be silent without a worker until its error comes."""
PAUSE_MAX_S = 15.0
"""Longest pause of a stream that goes on behind its tokens: a stopped worker is found out, and then another …"""
PAUSE_HUNG_MAX_S = 2 * ENGINE_STALL_S
"""… and of one whose engine hangs."""
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
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two faults")
    parser.add_argument("--fault", action="append", choices=[*FAULTS, HUNG], help="only this one; may be given again")
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
        faults = await _harmed(site, wanted, violations)
        await load.finish()
        await site.whole()
        pause_max_s = PAUSE_HUNG_MAX_S if HUNG in faults else PAUSE_MAX_S
        findings |= {"faults": dict(faults), "disturbed": _summary(load.tally, violations, pause_max_s)}
        moved = [event for event in await site.running.events(ROUTING) if isinstance(event, RequestMigrated)]
        findings["migrations"] = len(moved)
        findings["most_of_one_stream"] = max(Counter(event.request for event in moved).values(), default=0)
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


async def _harmed(site: StreamSite, wanted: argparse.Namespace, violations: list[str]) -> Counter[str]:
    """One fault after the other, each on a worker that is well; half of them are always left alone."""
    counts, under_way = Counter[str](), set[asyncio.Task[None]]()
    until_s, within_s = time.monotonic() + wanted.seconds, END_S + site.kind.start_s
    for fault in itertools.cycle(wanted.fault or FAULTS):
        if time.monotonic() >= until_s:
            break
        await eventually(lambda: len(site.well) > max(1, wanted.workers // 2), "workers that are well", within_s)
        under_way.add(asyncio.create_task(_harm(site, fault, site.random.choice(site.well))))
        counts[fault] += 1
        await asyncio.sleep(wanted.every)
    results = await asyncio.gather(*under_way, return_exceptions=True)
    violations += [f"a fault went wrong: {result!r}" for result in results if result is not None]
    return counts


async def _harm(site: StreamSite, fault: str, worker: Worker) -> None:
    if fault == "killed":
        await site.killed(worker)
    elif fault == HUNG:
        await site.hung(worker)
    elif fault == "drained":
        await site.drained(worker)
    else:
        await site.slept(worker, STOPPED_S)


async def _without_workers(site: StreamSite, load: StreamLoad, streams: int, violations: list[str]) -> dict[str, Any]:
    """Streams whose every worker is gone end with a clear error, soon; afterwards as many are whole again."""
    load.tally = StreamTally()
    asking = asyncio.create_task(load.once(streams))
    await asyncio.sleep(OUTAGE_AFTER_S)
    await site.all_killed()
    began_s = time.monotonic()
    await asking
    took_s = round(time.monotonic() - began_s, 1)
    outage = _summary(load.tally, violations, whole=False)
    if took_s > ERROR_WITHIN_S:
        violations.append(f"without a worker the last stream ended after {took_s} s")
    await site.whole()
    load.tally = StreamTally()
    await load.once(streams)
    after = _summary(load.tally, violations)
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


def _summary(
    tally: StreamTally, violations: list[str], pause_max_s: float = PAUSE_MAX_S, *, whole: bool = True
) -> dict[str, Any]:
    """What the streams were told; `whole` if none may have got an error."""
    violations += [f"wrong text: {sentence}" for sentence in tally.wrong]
    violations += [f"no clear answer: {sentence}" for sentence in tally.broken]
    if whole:
        violations += [f"an error: {sentence}" for sentence in tally.errors]
        pause_s = max(tally.pauses_s, default=0.0)
        if pause_s > pause_max_s:
            violations.append(f"a stream paused for {pause_s:.1f} s")
    return {
        "whole": tally.whole,
        "errors": len(tally.errors),
        "kinds_of_errors": sorted(set(tally.errors))[:SHOWN_MAX],
        "wrong": len(tally.wrong),
        "broken": len(tally.broken),
        "ties": tally.ties,
        "longest_pause_s": round(max(tally.pauses_s, default=0.0), 2),
        "longest_pause_again_s": round(max(tally.pauses_again_s, default=0.0), 2),
        "median_longest_pause_s": round(statistics.median(tally.pauses_s), 3) if tally.pauses_s else 0.0,
        "longest_first_s": round(max(tally.firsts_s, default=0.0), 2),
    }


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
