"""A worker with a disk in a whole deployment: killed, it serves from its disk again, and every decision is verified."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

from core.events import PoolJoined, PoolLost, RequestRouted
from tests.actors.engines.vllm.test_host_tier import BLOCK_BYTES, SIZE
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

DEVICE_BLOCKS, HOST_BLOCKS = 64, 60
BLOCKS = 6
"""Of a prompt."""
PROMPTS = 4
KILLS = 2
LIFE_S = 240.0
ENGINE = {"max_model_len": 1024, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
TIERS = {"host": f"{HOST_BLOCKS * BLOCK_BYTES // 1024}KiB", "disk": {"path": "kv", "size": "1GiB"}}
WORKERS = [{"name": "decode", "count": 1, "engine": "vllm", "engine_args": ENGINE, "kv_tiers": TIERS}]


def prompt(seed: int) -> list[int]:
    fresh = random.Random(seed)
    return [fresh.randrange(10, 2000) for _ in range(BLOCKS * SIZE + 5)]


async def answer(it: Running, tokens: list[int]) -> tuple[str, int]:
    """The text, and how many of the prompt's tokens came from the cache."""
    found = await it.openai.completions.create(model="tiny", prompt=tokens, max_tokens=8, temperature=0)
    assert found.usage is not None
    details = found.usage.prompt_tokens_details
    return found.choices[0].text, (details.cached_tokens or 0) if details else 0


def pool(it: Running) -> dict[str, Any]:
    """As the worker describes it; empty while it is away."""
    try:
        found: dict[str, Any] = it.state("decode-0")["pool"] or {}
    except (OSError, LookupError):
        return {}
    return found


def pools(it: Running) -> list[dict[str, Any]]:
    """As the front end knows them by the log."""
    found: list[dict[str, Any]] = it.state("frontend-0")["pools"]
    return found


async def test_a_killed_workers_disk_is_known_before_a_request(tmp_path: Path) -> None:
    """Prompts that lie on the disk alone are predicted in its next life, and found."""
    file = tmp_path / "pool.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "routing": {"policy": "kv"}}))
    async with up(tmp_path / "data", "-f", str(file)) as it:
        cold = {seed: (await answer(it, prompt(seed)))[0] for seed in range(PROMPTS)}
        for seed in range(100, 100 + (DEVICE_BLOCKS + HOST_BLOCKS) // BLOCKS):  # pushes them off device and host
            await answer(it, prompt(seed))
        await eventually(lambda: pool(it)["blocks"] == pool(it)["files"] >= PROMPTS * BLOCKS, "all is announced")
        for kill in range(KILLS):
            before = pool(it)
            os.kill(it.part("decode-0")["pid"], signal.SIGKILL)
            await eventually(lambda source=before["source"]: pool(it).get("source", source) != source, "a life", LIFE_S)  # type: ignore[misc]
            source = pool(it)["source"]
            await eventually(lambda source=source: [each["source"] for each in pools(it)] == [source], "PoolLost", 60.0)  # type: ignore[misc]
            assert [(each["pool"], each["blocks"]) for each in pools(it)] == [(before["id"], before["blocks"])]
            for seed in range(kill, PROMPTS, KILLS):
                assert await answer(it, prompt(seed)) == (cold[seed], BLOCKS * SIZE)
        await eventually(it._at_rest, "rest")
        live = it.state("frontend-0")
        state = await it.folded(live["cursor"])
        assert f"{state.digest:016x}" == live["digest"]
        events = await it.events("kv_0")
        assert len({event.keeper for event in events if isinstance(event, PoolJoined)}) == KILLS + 1
        assert sum(isinstance(event, PoolLost) for event in events) == KILLS
        routed = [event for event in await it.events("routing") if isinstance(event, RequestRouted)]
        assert [event.predicted_cached_tokens for event in routed[-PROMPTS:]] == [BLOCKS * SIZE] * PROMPTS
        verified = await asyncio.to_thread(contrail, "replay", "verify", "--json", "--data", str(it.data))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        found = json.loads(verified.stdout)
        assert (found["verified"], found["different"], found["holds"]) == (len(routed), 0, True)
