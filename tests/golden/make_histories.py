"""Writes `histories/`: exports of a run with kills, of a disaggregated and of a simulated one, and every answer about
them, as the program gives them that is there. They are history: a later version must give the same answers.

    python -m tests.golden.make_histories              the exports and the answers
    python -m tests.golden.make_histories --answers    the answers alone: of what a version is meant to tell otherwise
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually
from tests.golden.test_histories import FOLDER, SIMULATIONS, TRACE, answered, questions, simulated

ENGINE = {"capacity_blocks": 300, "eos_every": 0, "prefill_us_per_token": 20, "decode_us_per_step": 500}
LIVE: dict[str, Any] = {
    "version": 1,
    "frontend": {"replicas": 2},
    "workers": [{"name": "decode", "count": 3, "engine": "simulated", "engine_args": ENGINE}],
}
DISAGG: dict[str, Any] = {
    "version": 1,
    "workers": [
        {"name": "decode", "count": 2, "engine": "simulated", "engine_args": {**ENGINE, "capacity_blocks": 900}},
        {
            "name": "prefill", "role": "prefill", "count": 1, "engine": "simulated",
            "engine_args": {**ENGINE, "capacity_blocks": 900},
        },
    ],
    "routing": {"policy": "kv", "remote_prefill_min_tokens": 256, "prefill_queue_max": 100},
}  # fmt: skip
TALKS, TURNS = 6, 8


async def talked(running: Running, seed: int, words: int) -> None:
    """Some talks at once, each turn longer than the one before; what breaks with a killed part is asked once more."""

    async def talk(number: int) -> None:
        choose = random.Random(f"{seed}/{number}")
        messages = [{"role": "system", "content": " ".join(f"rule{at}" for at in range(words))}]
        for _ in range(TURNS):
            messages.append({"role": "user", "content": " ".join(f"word{choose.randrange(900)}" for _ in range(words))})
            body = {"model": "tiny", "messages": messages, "max_tokens": choose.randrange(4, 24)}
            for _ in range(5):
                try:
                    async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
                        answer = await http.post("/v1/chat/completions", json=body)
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
            else:
                raise AssertionError("nothing answers")
            if answer.status_code != 200:
                break  # the context is full
            messages.append(answer.json()["choices"][0]["message"])

    await asyncio.gather(*map(talk, range(TALKS)))


async def ended(running: Running, name: str) -> None:
    """The part was killed, and another one has taken its place."""
    before = running.part(name)
    os.kill(before["pid"], signal.SIGKILL)
    await eventually(lambda: came_back(running, name, before["pid"]), f"another {name}", 60)


def came_back(running: Running, name: str, pid: int) -> bool:
    try:
        return bool(running.part(name)["pid"] != pid and running.state(name))
    except (LookupError, OSError, KeyError):
        return False


async def live(folder: Path, name: str, deployment: dict[str, Any], words: int, killed: tuple[str, ...]) -> None:
    """The deployment's log after talks, with parts killed between and amid them."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(deployment))
    async with up(folder / name, "-f", str(file)) as running:
        await talked(running, 1, words)
        for part in killed:
            talking = asyncio.create_task(talked(running, 2, words))
            await asyncio.sleep(0.3)
            await ended(running, part)
            await talking
        contrail("settings", "set", "own_weight", "2", "--data", str(running.data))
        await talked(running, 3, words)
        await asyncio.sleep(1)
        done = contrail("export", str(FOLDER / f"{name}.contrail"), "--data", str(running.data), "--force")
        assert done.returncode == 0, done.stderr
        shutil.copy(running.data / "key", FOLDER / f"{name}.key")


def made() -> None:
    """The three exports."""
    with tempfile.TemporaryDirectory(prefix="contrail-histories-") as name:
        folder = Path(name)
        asyncio.run(live(folder, "live", LIVE, 60, ("decode-1", "frontend-1")))
        asyncio.run(live(folder, "disagg", DISAGG, 150, ("prefill-0",)))
        trace = folder / "trace.jsonl"
        trace.write_text(TRACE)
        out = FOLDER / "simulated.contrail"
        done = contrail("simulate", str(trace), *SIMULATIONS["replicas"], "--out", str(out), "--force")
        assert done.returncode == 0, done.stderr
        out.with_suffix(".contrail.key").rename(FOLDER / "simulated.key")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    if "--answers" not in sys.argv:
        made()
    for history in ("live", "disagg", "simulated"):
        found = {question: answered(history, *words) for question, words in questions(history).items()}
        (FOLDER / f"{history}.json").write_text(json.dumps(found, indent=1) + "\n")
    told = {case: simulated(case) for case in SIMULATIONS}
    (FOLDER / "simulations.json").write_text(json.dumps(told, indent=1) + "\n")
