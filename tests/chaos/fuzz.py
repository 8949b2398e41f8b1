"""Fuzz: requests of all kinds of wrongness, and afterwards nothing is left of them.

python -m tests.chaos.fuzz --attempts 5000 --seed 1            a deployment of its own with simulated workers
python -m tests.chaos.fuzz --attempts 300 --seed 7 --only 41   the 41st of them alone, to look at it

Every answer must have a status below 500 (503 and 504 say when to come again) and its error the right shape; in the
end no request, no connection and no memory may be left over. Exit status 1 if any of this is not so.

schemathesis asks by the description; a deadline of 1 ms, which it would try, is rightly answered with 504:
schemathesis run http://127.0.0.1:8000/openapi.json -H "x-contrail-deadline-ms: 60000" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from api.server.protocol import LINGER_S
from tests.chaos.fuzz_bodies import paths, spoiled, valid
from tests.chaos.fuzz_wire import complaint, sent
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

AT_ONCE = 16
BEAT_S = 0.5
STILL_S = LINGER_S - BEAT_S
"""A client that stands still for so long may hear a break: its half request is refused, and the connection cut
LINGER_S later."""
GROWTH_MIB_MAX = 48
"""What a front end may have more after the last request than after the first fifth: caches fill, arenas stay."""


@dataclass(slots=True)
class Findings:
    """What came of it."""

    statuses: Counter[str] = field(default_factory=Counter)
    manners: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    beat_s: float = 0.0
    """The last time at which this process itself was seen to run …"""
    still_until_s: float = -1.0
    """… and when it last went on after it had stood still."""

    def beat(self, now_s: float) -> None:
        """The process runs."""
        if now_s - self.beat_s > STILL_S:
            self.still_until_s = now_s
        self.beat_s = now_s


async def watch_self(found: Findings) -> None:
    """Notes when this process stood still, for ever."""
    loop = asyncio.get_running_loop()
    found.beat_s = loop.time()
    while True:
        await asyncio.sleep(BEAT_S)
        found.beat(loop.time())


async def attempt(seed: int, number: int, address: tuple[str, int], model: str, found: Findings) -> None:
    """One request, the same for the same seed and number."""
    random, loop = Random(f"{seed}/{number}"), asyncio.get_running_loop()
    began_s = loop.time()
    path = random.choice(paths())
    body = spoiled(random, valid(random, path, model))
    try:
        manner, heard = await sent(random, address, path, body)
    except TimeoutError:
        found.complaints.append(f"{number} {path}: no answer within the time: {body[:300]!r}")
        return
    found.manners[manner] += 1
    found.beat(loop.time())
    if heard.broke and found.still_until_s >= began_s:
        found.statuses["broke: this process stood still"] += 1
        return
    found.statuses[str(heard.status)] += 1
    if (wrong := complaint(path, heard)) is not None:
        found.complaints.append(f"{number} {path}, {manner}: {wrong}; {body[:300]!r}")


async def fuzz(seed: int, numbers: range, address: tuple[str, int], model: str) -> Findings:
    """All attempts were made, AT_ONCE at a time."""
    found, left = Findings(), iter(numbers)

    async def client() -> None:
        for number in left:
            await attempt(seed, number, address, model, found)

    watch = asyncio.create_task(watch_self(found))
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    watch.cancel()
    return found


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    words = ("--engine", "simulated", "--workers", "2")
    with tempfile.TemporaryDirectory(prefix="contrail-fuzz-") as folder:
        async with up(Path(folder) / "data", *words) as running:
            address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
            if wanted.only is not None:
                return told(await fuzz(wanted.seed, range(wanted.only, wanted.only + 1), address, "tiny"))
            warm = wanted.attempts // 5
            found = await fuzz(wanted.seed, range(warm), address, "tiny")
            before = await at_rest(running)
            rest = await fuzz(wanted.seed, range(warm, wanted.attempts), address, "tiny")
            after = await at_rest(running)
            found.statuses += rest.statuses
            found.manners += rest.manners
            found.complaints += rest.complaints
            if after - before > GROWTH_MIB_MAX:
                found.complaints.append(f"the front end grew by {after - before} MiB")
            print(json.dumps({"rss_mib": [before, after]}))
    return told(found)


async def at_rest(running: Running) -> int:
    """Nothing is under way anywhere; the front end's memory in MiB."""

    def rest() -> bool:
        parts = [running.state(part["name"]) for part in running.run()["parts"] if part["kind"] in KINDS]
        return not any(part.get(key) for part in parts for key in ("requests", "waiting", "in_flight"))

    await eventually(rest, "the end of all requests", timeout_s=90)
    return int(running.state("frontend-0")["rss_bytes"]) >> 20


KINDS = ("worker", "frontend")


def told(found: Findings) -> int:
    """The exit status; the findings are printed."""
    print(json.dumps({"statuses": found.statuses, "manners": found.manners}))
    for line in found.complaints[:20]:
        print(line)
    print(f"{len(found.complaints)} complaints")
    return 1 if found.complaints else 0


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--attempts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
