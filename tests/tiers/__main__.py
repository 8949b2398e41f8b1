"""Tiers: every tier of blocks on real vLLM engines, with damaged files, killed processes and checks switched off.

python -m tests.tiers --rounds 20 --kills 5 --json tiers.json
python -m tests.tiers --case disk --case fetch --rounds 3

The built-in tiny model in float32. A text is right if it is that of the same prompt without a cache. It prints a
table; exit status 1 if a case failed: a wrong text, or with a check switched off none. It leaves no process.
"""

# ruff: noqa: T201 - it talks to its caller
from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from actors.engines.tiny_model import ensure_tiny_checkpoint
from tests.tiers.beside_cases import fetch_disk, fetch_s3, pulls
from tests.tiers.case_result import CaseResult, table
from tests.tiers.counted_engine import Bench
from tests.tiers.deployment_kills import everything, fetch_kills, kills
from tests.tiers.disk_cases import disk, lives
from tests.tiers.fetch_cases import fetch, sources, stopped
from tests.tiers.host_cases import host
from tests.tiers.pool_cases import pool, s3, statistics

ROUNDS, KILLS = 20, 5
CASES: dict[str, Callable[[Bench], AsyncIterator[CaseResult]]] = {
    "host": host,
    "disk": disk,
    "lives": lives,
    "pool": pool,
    "s3": s3,
    "statistics": statistics,
    "fetch": fetch,
    "fetch-disk": fetch_disk,
    "fetch-s3": fetch_s3,
    "stopped": stopped,
    "sources": sources,
    "pulls": pulls,
    "kills": kills,
    "fetch-kills": fetch_kills,
    "everything": everything,
}
"""Each has rows of its own, in its own folder."""


def arguments() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each row")
    parser.add_argument("--kills", type=int, default=KILLS, help="rounds of rows in which a process is killed")
    parser.add_argument("--case", action="append", choices=[*CASES], dest="cases", help="may be given several times")
    parser.add_argument("--json", type=Path, dest="report", help="write the rows there")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> int:
    """The exit status."""
    results = list[CaseResult]()
    for name in options.cases or CASES:
        began = time.monotonic()
        found = await _rows(name, options.rounds, options.kills)
        print(f"{name}: {len(found)} rows after {time.monotonic() - began:.0f} s", flush=True)
        results += found
        if options.report:
            options.report.write_text(json.dumps([result.facts() for result in results], indent=1) + "\n")
    print(table(results))
    return int(any(result.failure for result in results))


async def _rows(name: str, rounds: int, kills: int) -> list[CaseResult]:
    """The rows of one case. A case that cannot go on is a row with its reason, so that the next case runs."""
    found = list[CaseResult]()
    folder = Path(tempfile.mkdtemp(prefix="contrail-tiers-"))
    try:
        model = ensure_tiny_checkpoint(folder / "model" / "tiny", lambda *_: None)
        (folder / "case").mkdir()
        async for result in CASES[name](Bench(folder / "case", model, rounds, kills)):
            print("\n".join([result.row(), *result.complaints]), flush=True)
            found.append(result)
    except Exception as error:  # whichever it is: it is told, and the exit status has it
        traceback.print_exc()
        broken = CaseResult(f"{name}: broken off")
        broken.expect(False, f"{type(error).__name__}: {error}")
        found.append(broken)
    finally:
        shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
