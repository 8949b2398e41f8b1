"""The log and the registry go away under load: no request fails, and afterwards index and caches agree."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from streams.embedded.embedded_nats import EmbeddedNats
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

AWAY_S = 10.0
CLIENTS = 4


class Load:
    """Requests, one after another per client, until stopped."""

    def __init__(self, running: Running) -> None:
        self.answered = 0
        self._running = running
        self._stopping = False
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]

    async def _client(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            answer = await self._running.openai.completions.create(
                model="tiny", prompt=f"client {number}, turn {turn % 7}: " + "and so on " * 60, max_tokens=8
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 8
            self.answered += 1

    async def stop(self) -> None:
        """Every request was answered in full, or this raises."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def test_nats_away_for_ten_seconds(tmp_path: Path) -> None:
    """NATS is stopped for ten seconds under load and started again."""
    nats = EmbeddedNats(tmp_path / "nats")
    await nats.start()
    try:
        file = tmp_path / "own-nats.yaml"
        access = {"nkey": str(nats.credentials.nkey_file)}
        log = {"nats": [nats.url], "credentials": access, "max_bytes": "1GiB"}
        workers = [{"engine": "simulated", "count": 2, "engine_args": {"capacity_blocks": 200, "eos_every": 0}}]
        file.write_text(json.dumps({"version": 1, "log": log, "workers": workers}))
        async with up(tmp_path / "data", "-f", str(file)) as running:
            load = Load(running)
            await eventually(lambda: load.answered > 20, "load")
            await nats.stop()
            before = load.answered
            await asyncio.sleep(AWAY_S)
            assert load.answered > before + 20
            waiting = running.state("frontend-0")["ahead"]
            assert waiting > 20
            await nats.start()
            await eventually(lambda: running.state("frontend-0")["ahead"] < waiting / 2, "the log caught up", 60)
            await load.stop()
            await running.assert_index_is_cache()
    finally:
        await nats.stop()


async def test_servers_killed_under_load(tmp_path: Path) -> None:
    """NATS, then etcd, killed -9 under load: both are started again, and nobody notices but the supervisor."""
    file = tmp_path / "small.yaml"
    workers = [{"engine": "simulated", "count": 2, "engine_args": {"capacity_blocks": 200, "eos_every": 0}}]
    file.write_text(json.dumps({"version": 1, "log": {"max_bytes": "1GiB"}, "workers": workers}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        load = Load(running)
        for name in ("nats", "etcd"):
            await _kill_under(load, running, name)
        await load.stop()
        await running.assert_index_is_cache()
        workers_now = running.state("frontend-0")["workers"]
        assert sorted(workers_now) == sorted(running.workers())


async def _kill_under(load: Load, running: Running, name: str) -> None:
    """The server is killed, started again by the supervisor, and requests go on all the while."""
    before, answered = running.part(name)["pid"], load.answered
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: _pid(running, name) not in {None, before}, f"{name} again", 60)
    await eventually(lambda: load.answered > answered + 40, "load", 60)


def _pid(running: Running, name: str) -> int | None:
    return next((part["pid"] for part in running.run()["parts"] if part["name"] == name), None)
