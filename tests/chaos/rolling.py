"""Rolling: restarts under load, one after the other, of front ends or of workers; no request may fail.

python -m tests.chaos.rolling --minutes 5 --replicas 2 --json rolling.json
python -m tests.chaos.rolling --what workers --minutes 3

Clients of four kinds ask all the time and never try again. Before the first restart they ask for a while undisturbed:
what their requests take more while restarts go on is the added latency. The exit status is 1 if one request failed.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.visitors import FAILURES_KEPT, KINDS, Visit, Visitors
from tests.e2e.deployment import Running, contrail, up

MINUTES_MAX = 120.0
CALM_S = 15.0
"""So long nothing is restarted at first."""
REST_S = 2.0
"""Between two restarts."""
RESTART_MAX_S = 300.0
ENGINE_ARGS = {"capacity_blocks": 1024, "eos_every": 0}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.rolling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=5.0, help=f"at most {MINUTES_MAX:g}")
    parser.add_argument("--restarts", type=int, default=1000, help="no more than so many")
    parser.add_argument("--what", default="frontends", help="as `contrail restart` takes it")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4, help="of each of the four kinds")
    parser.add_argument("--json", type=Path, dest="report")
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-rolling-"))
    try:
        file = folder / "rolling.yaml"
        workers = [{"engine": "simulated", "count": wanted.workers, "engine_args": ENGINE_ARGS}]
        file.write_text(json.dumps({"version": 1, "frontend": {"replicas": wanted.replicas}, "workers": workers}))
        async with up(folder / "data", "-f", str(file)) as running:
            findings = await _rolled(running, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1) + "\n")
    print(json.dumps(findings, indent=1))
    return 1 if findings["failed"] or findings["restarts_failed"] else 0


async def _rolled(running: Running, wanted: argparse.Namespace) -> dict[str, Any]:
    clock_s = asyncio.get_running_loop().time
    visitors = Visitors("127.0.0.1", int(running.url.rpartition(":")[2]), wanted.clients)
    began_s = clock_s()
    end_s = began_s + 60 * min(wanted.minutes, MINUTES_MAX)
    await asyncio.sleep(CALM_S)
    calm_until_s = clock_s()
    restarts: list[dict[str, Any]] = []
    while clock_s() < end_s and len(restarts) < wanted.restarts:
        words = ("restart", wanted.what, "--data", str(running.data), "--json")
        done = await asyncio.to_thread(contrail, *words, timeout_s=RESTART_MAX_S)
        restarts.append(
            json.loads(done.stdout) if done.stdout else {"state": "refused", "parts": [], "why": done.stderr}
        )
        print(f"restart {len(restarts)}: {restarts[-1]['state']}, {len(visitors.failures)} requests failed so far")
        await asyncio.sleep(REST_S)
    await visitors.stop()
    return _findings(visitors, restarts, calm_until_s, clock_s() - began_s)


def _findings(visitors: Visitors, restarts: list[dict[str, Any]], calm_until_s: float, took_s: float) -> dict[str, Any]:
    steps = [step["took_s"] for restart in restarts for step in restart["parts"] if step.get("took_s")]
    calm = [visit for visit in visitors.visits if visit.at_s + visit.took_s < calm_until_s]
    rolling = [visit for visit in visitors.visits if visit.at_s >= calm_until_s]
    return {
        "seconds": round(took_s),
        "restarts": len(restarts),
        "restarts_failed": sum(restart["state"] != "done" for restart in restarts),
        "parts_restarted": len(steps),
        "part_s": _spread(steps),
        "requests": len(visitors.visits),
        "failed": len(visitors.failures),
        "failures": [visit._asdict() for visit in visitors.failures[:FAILURES_KEPT]],
        "by_kind": {kind: dict(counts) for kind, counts in visitors.counts().items()},
        "latency_ms": {kind: {"calm": _took(calm, kind), "rolling": _took(rolling, kind)} for kind in KINDS},
    }


def _took(visits: Iterable[Visit], kind: str) -> dict[str, float]:
    return _spread([1000 * visit.took_s for visit in visits if visit.kind == kind])


def _spread(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(values), 2)}


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
