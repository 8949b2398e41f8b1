"""The walks of ARCHITECTURE.md: a profiler stops at each named function, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.path import CHAT, KEY, NAMESPACE, Deployment, Followed, deployed, followed, stored, verified
from streams.archive.archive_export import archive
from streams.archive.archive_writer import ArchiveWriter
from streams.snapshot_store import SnapshotStore
from tests.docs.pages import ARCHITECTURE

ELSEWHERE = ("actors/engines/kv_events/", "streams/jetstream/", "streams/outbox/journal")
"""The log is in memory here, and the engine is simulated: their rooms are entered in the tests of real parts."""
LONG = 400
"""Words of a prompt that is held until the best worker has room."""


def walk(number: int) -> list[str]:
    """File and function of each step that is taken here."""
    section = ARCHITECTURE.read_text().split(f"## Walk {number}")[1].split("\n## ")[0]
    rows = re.findall(r"\| `([\w/]+\.py)` `([\w.]+)` \|$", section, re.MULTILINE)
    assert len(rows) > 5
    return [f"{file} {name}" for file, name in rows if not file.startswith(ELSEWHERE)]


def entered(path: Followed) -> list[str]:
    return [f"{file} {code.co_qualname}" for file, code in path.entered]


def missed(steps: list[str], calls: list[str]) -> list[str]:
    """The first step that is not entered behind those before it, with the rest."""
    at = 0
    for number, step in enumerate(steps):
        if step not in calls[at:]:
            return steps[number:]
        at = calls.index(step, at) + 1
    return []


async def _chat(it: Deployment) -> Followed:
    """One long streamed chat, read to its end."""
    body = {**CHAT, "messages": [{"role": "user", "content": " ".join(f"word{at}" for at in range(LONG))}]}
    async with httpx.AsyncClient(base_url=f"http://{it.server.address}", timeout=30) as http:
        await it.still()
        with followed() as path:
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                await answer.aread()
    return path


async def _exported(it: Deployment, folder: Path) -> tuple[Followed, Path]:
    await it.still()
    file = folder / "walk.contrail"
    with followed() as path:
        writer = ArchiveWriter(file, NAMESPACE, KEY.chain_key, "tests.docs", 0)
        await archive(it.log, SnapshotStore(it.log, NAMESPACE, KEY.chain_key), writer)
        writer.finish(writer.contents(0, 0))
    return path, file


@pytest.fixture
async def paths(tmp_path: Path) -> dict[int, list[str]]:
    """What was entered, by walk."""
    ensure_tiny_checkpoint(tmp_path / "model", lambda _: None)
    async with deployed(tmp_path / "model") as it:
        talked, cached = await _chat(it), await stored(it, 0)
        exported, file = await _exported(it, tmp_path)
    return {1: entered(talked), 2: entered(cached), 3: [*entered(talked), *entered(exported), *entered(verified(file))]}


async def test_each_named_step_is_entered_in_its_order(paths: dict[int, list[str]]) -> None:
    assert {number: missed(walk(number), calls) for number, calls in paths.items()} == {1: [], 2: [], 3: []}
