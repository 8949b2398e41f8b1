"""Remote prefill under faults: real processes killed, stopped and cut off while clients compare every text.

python -m tests.chaos.disagg --times 100 --json disagg.json
python -m tests.chaos.disagg --times 20 --fault nats_killed --fault etcd_killed
python -m tests.chaos.disagg --times 1 --engine vllm

Each fault so many times, one fault after the other; after each all is whole again and a prompt was computed elsewhere
once more. It ends by itself and leaves no process; exit status 1 if a text was wrong, an answer neither whole nor a
clear error, something left behind, or anybody waited too long.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.complaints import SHOWN_MAX, complaints
from tests.chaos.disagg_engines import KINDS
from tests.chaos.disagg_faults import FAULTS, Fault
from tests.chaos.disagg_rest import handed_out_again, leaks, open_jobs
from tests.chaos.disagg_site import REPLICAS, WAIT_MAX_S, Site, site_of
from tests.chaos.rest import Rest

BOUND_S = 15.0
"""So much longer than a job's deadline a request may take, from its first byte to the last: it may wait for a server
or a worker that is away, for a slot and for blocks that do not come, and may have to begin again on another worker."""
JOB_BOUND_S = 5.0
"""So much longer than its deadline a job may be open: what a worker was stopped for counts."""
FAULT_S = 300.0
"""How long one fault may take until all is whole again, beside the time that a worker takes to start."""
VIOLATIONS_MAX = 5
"""After so many a fault is tried no more."""
NAMES = {fault.__name__: fault for fault in FAULTS}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.disagg", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--times", type=int, default=100, help="each fault so often")
    parser.add_argument("--fault", action="append", choices=NAMES, help="only this one; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=KINDS, default="simulated")
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    parser.add_argument("--keep", type=Path, help="leave the parts' logs there")
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-disagg-"))
    rows: list[dict[str, Any]] = []
    try:
        async with site_of(folder, KINDS[wanted.engine], wanted.seed) as site:
            for name in wanted.fault or NAMES:
                rows.append(await _tried(site, NAMES[name], wanted.times))
                _say(f"{name}: {rows[-1]}")
            await site.jobs.stop()
            askers = Rest(site.running, REPLICAS, workers=1, askers=1 + site.kind.decode)
            left = await askers.consumers_left()
        found = complaints(folder / "data" / "logs")
    finally:
        if wanted.keep:
            shutil.copytree(folder / "data" / "logs", wanted.keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    wrong = sum(bool(row["violations"]) for row in rows) + bool(left)
    findings: dict[str, Any] = {
        "complaints": found,
        "wrong": wrong,
        "engine": wanted.engine,
        "seed": wanted.seed,
        "faults": rows,
        "left": left,
    }
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1, default=str) + "\n")
    _show(rows, left, found)
    return 1 if wrong else 0


async def _tried(site: Site, fault: Fault, times: int) -> dict[str, Any]:
    """One fault so often, and what is left when all is at rest."""
    name, began_s, done = fault.__name__, time.monotonic(), 0
    violations: list[str] = []
    site.label(name)
    again_before = await handed_out_again(site)
    site.load.start()
    while done < times and len(violations) < VIOLATIONS_MAX:
        done += 1
        try:
            async with asyncio.timeout(FAULT_S + site.kind.start_s):
                await site.pulled_more()
                await fault(site)
                await site.whole()
        except (AssertionError, TimeoutError, OSError) as error:
            violations.append(f"at the {done}th time: {error!r}")
            await site.mend()
        if done % 10 == 0:
            answered = site.load.tallies[name].answered
            _say(f"{time.monotonic() - began_s:6.0f} s  {name} {done} times: {answered} answered")
    await site.pulled_more()
    await site.load.stop()
    violations += [f"left behind: {sentence}" for sentence in await leaks(site)]
    violations += await open_jobs(site)
    again = await handed_out_again(site) - again_before
    took_s = round(time.monotonic() - began_s)
    return _row(site, name, done, violations) | {"handed_out_again": again, "took_s": took_s}


def _row(site: Site, name: str, times: int, violations: list[str]) -> dict[str, Any]:
    """The fault's line of the table."""
    tally, count = site.load.tallies[name], site.jobs.counts[name]
    violations += [f"wrong text: {sentence}" for sentence in tally.wrong]
    violations += [f"no clear answer: {sentence}" for sentence in tally.broken]
    if tally.slowest_s > WAIT_MAX_S + BOUND_S + site.kind.keep_s:
        violations.append(f"a request took {tally.slowest_s:.1f} s")
    if count.wait_ms_max > 1000 * (WAIT_MAX_S + JOB_BOUND_S + site.kind.keep_s):
        violations.append(f"a job waited {count.wait_ms_max} ms")
    return {
        "fault": name,
        "times": times,
        "answered": tally.answered,
        "refused": tally.refused,
        "remote": count.remote,
        "recomputed": dict(count.recomputed.most_common()),
        "ties": tally.ties,
        "wrong": len(tally.wrong),
        "slowest_s": round(tally.slowest_s, 2),
        "job_waited_s": count.wait_ms_max / 1000,
        "refusals": sorted(tally.refusals)[:SHOWN_MAX],
        "violations": violations,
    }


COLUMNS = {
    "fault": 28,
    "times": 5,
    "answered": 8,
    "refused": 7,
    "remote": 6,
    "handed_out_again": 16,
    "ties": 4,
    "wrong": 5,
    "slowest_s": 9,
    "job_waited_s": 12,
}
"""How wide each is."""


def _show(rows: list[dict[str, Any]], left: list[str], found: dict[str, int]) -> None:
    print("\n  " + "  ".join(f"{name:>{width}}" for name, width in COLUMNS.items()) + "  recomputed")
    for row in rows:
        cells = "  ".join(f"{row[name]!s:>{width}}" for name, width in COLUMNS.items())
        print(f"  {cells}  {', '.join(f'{why} {count}' for why, count in row['recomputed'].items())}")
    for row in rows:
        for sentence in row["violations"][:SHOWN_MAX]:
            print(f"  VIOLATED  {row['fault']}: {sentence[:1000]}")
        for sentence in row["refusals"]:
            print(f"  refused   {row['fault']}: {sentence[:300]}")
    for sentence in left:
        print(f"  VIOLATED  {sentence}")
    for text, times in sorted(found.items(), key=lambda item: -item[1])[:SHOWN_MAX]:
        print(f"  said {times:5d} times  {text}")


def _say(line: str) -> None:
    print(line, flush=True)


async def _until_told_to_end() -> int:
    """As `main`; SIGTERM ends it as Ctrl-C does, and leaves no process either."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    return await main(arguments())


if __name__ == "__main__":
    raise SystemExit(asyncio.run(_until_told_to_end()))
