"""Scale-downs: a planned fleet shrinks under streams, again and again; no answer may fail, and none may differ.

python -m tests.chaos.scale_downs --downs 50 --json downs.json

Each prompt is asked once on a fleet of one worker. Then streams of the same prompts run all the time, while
`contrail scale set` takes the fleet to three workers, to two, and to one. Each answer must have the text of the prompt
asked alone. The exit status is 1 if an answer failed or differs, if a decision of the planner cannot be made again, or
if no stream went on at another worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from core.events import RequestMigrated, ScaleDecided
from core.subjects import ROUTING, SCALE
from tests.chaos.planned_fleet import PlannedRun
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

DOWNS_MAX = 1000
MOST = 3
"""Workers before the fleet shrinks, one by one."""
PROMPTS = 16
STREAMS = 8
"""At once; each begins anew when it has ended."""
TOKENS = 60
ENGINE = {"decode_us_per_step": 40_000, "capacity_blocks": 4096, "eos_every": 0}
"""A stream takes some 2.4 s."""
DRAIN = "1s"
"""Shorter than a stream, so that a worker that drains has to hand some over."""
PLANNER = {
    "mode": "act",
    "slo": {"ttft_ms": 1000, "itl_ms": 100},
    "max": MOST,
    "period_s": 1,
    "down_window_s": 2,
    "startup_s": 5,
}
SPREAD_S = 2.4
"""Time before a fleet shrinks in which each stream begins anew: then its newest workers have some, too."""
CHANGE_S = 120.0
"""Longest time until the fleet has the new size, on a busy machine."""
FAILURES_KEPT = 10


class ScaleDowns(PlannedRun, kw_only=True):
    """Findings of a run."""

    downs: int = 0
    """Times that the fleet was made smaller under streams."""
    answers: int = 0
    failed: int = 0
    wrong: int = 0
    """Whole answers with another text."""
    moved: int = 0
    """Streams that went on at another worker."""
    failures: list[str] = msgspec.field(default_factory=list)
    """The first FAILURES_KEPT of them."""

    @property
    def is_good(self) -> bool:
        """Every stream had its text, and drains met some of them."""
        whole = self.answers > 0 and not self.failed and not self.wrong
        return whole and self.moved > 0 and self.is_proved


class StreamAnswer(NamedTuple):
    """The text of a stream, or the reason why it has none."""

    text: str
    failure: str = ""


class Streams:
    """Clients that never try again."""

    def __init__(self, running: Running, found: ScaleDowns) -> None:
        self._url = running.url
        self._found = found
        self._alone: list[str] = []
        """By prompt."""

    def __repr__(self) -> str:
        return f"<Streams, {self._found.answers} answers>"

    async def ask_alone(self) -> None:
        """The text of each prompt is known. AssertionError if one has none."""
        async with httpx.AsyncClient(timeout=CHANGE_S) as client:
            for prompt in range(PROMPTS):
                answer = await self._ask(client, prompt)
                assert not answer.failure, answer.failure
                self._alone.append(answer.text)
        assert len(set(self._alone)) == PROMPTS, "texts of different prompts must differ"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Streams run; at the end all of them have ended."""
        ends = asyncio.Event()
        async with httpx.AsyncClient(timeout=CHANGE_S) as client, asyncio.TaskGroup() as clients:
            for number in range(STREAMS):
                clients.create_task(self._ask_on(client, number, ends))
            yield
            ends.set()

    async def _ask_on(self, client: httpx.AsyncClient, number: int, ends: asyncio.Event) -> None:
        prompt = number
        while not ends.is_set():
            self._note(prompt, await self._ask(client, prompt))
            prompt = (prompt + STREAMS + 1) % PROMPTS

    def _note(self, prompt: int, answer: StreamAnswer) -> None:
        found, failure = self._found, answer.failure
        found.answers += 1
        found.failed += bool(failure)
        if not failure and answer.text != self._alone[prompt]:
            found.wrong += 1
            failure = f"prompt {prompt}: {answer.text!r} instead of {self._alone[prompt]!r}"
        if failure and len(found.failures) < FAILURES_KEPT:
            found.failures.append(failure)

    async def _ask(self, client: httpx.AsyncClient, prompt: int) -> StreamAnswer:
        body = {"model": "tiny", "prompt": f"prompt {prompt}: " * 20, "max_tokens": TOKENS, "stream": True}
        pieces = list[str]()
        try:
            async with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    data = line.removeprefix("data: ")
                    if data == "[DONE]":
                        return StreamAnswer("".join(pieces))
                    event = json.loads(data) if line else {}
                    if "error" in event:
                        return StreamAnswer("", f"status {answer.status_code}: {data[:300]}")
                    pieces += [choice["text"] for choice in event.get("choices", ())]
        except (httpx.HTTPError, ValueError) as error:
            return StreamAnswer("", repr(error))
        return StreamAnswer("", "the stream broke off")


async def shrink(running: Running, downs: int) -> ScaleDowns:
    """So many scale-downs under streams. AssertionError if the fleet does not follow."""
    found = ScaleDowns()
    streams = Streams(running, found)
    await set_size(running, 1)
    await streams.ask_alone()
    async with streams.running():
        while found.downs < downs:
            await set_size(running, MOST)
            for workers in range(MOST - 1, 0, -1):
                if found.downs < downs:
                    await asyncio.sleep(SPREAD_S)
                    await set_size(running, workers)
                    found.downs += 1
    await found.prove(running)
    found.moved = sum(isinstance(event, RequestMigrated) for event in await running.events(ROUTING))
    return found


async def set_size(running: Running, workers: int) -> None:
    """The fleet has so many workers: they are ready, and those that drained are gone."""
    size = ("min", str(workers), "max", str(workers))
    done = await asyncio.to_thread(contrail, "scale", "set", *size, "--data", str(running.data), timeout_s=CHANGE_S)
    assert done.returncode == 0, done.stderr

    def is_done() -> bool:
        ready = running.state("planner-0")["ready"]
        return ready == workers == len(running.workers()) and not running.run()["beside"]

    await eventually(is_done, f"a fleet of {workers}", CHANGE_S)


async def smaller_targets(running: Running) -> int:
    """Decisions whose target is below the one before."""
    targets = [event.target for event in await running.events(SCALE) if isinstance(event, ScaleDecided)]
    return sum(after < before for before, after in pairwise(targets))


def deployment(folder: Path) -> Path:
    """The file of the deployment."""
    file = folder / "planned.yaml"
    workers = [{"engine": "simulated", "count": 1, "drain_timeout": DRAIN, "engine_args": ENGINE}]
    spread = {"policy": "round-robin"}  # a policy by caches would leave new workers without streams
    file.write_text(json.dumps({"version": 1, "workers": workers, "planner": PLANNER, "routing": spread}))
    return file


async def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.scale_downs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--downs", type=int, default=50, choices=range(1, DOWNS_MAX + 1), metavar="N")
    parser.add_argument("--json", type=Path, dest="report")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="contrail-scale-downs-"))
    try:
        async with up(folder / "data", "-f", str(deployment(folder))) as running:
            found = await shrink(running, options.downs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found.report(options.report)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
