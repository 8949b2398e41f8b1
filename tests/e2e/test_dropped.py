"""The log's disk is full for longer than the journal lasts: dropped decisions are named by the log, verify and
doctor."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.embedded.embedded_nats import EmbeddedNats
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

DISK_BYTES = 48 * 1024 * 1024
CLIENTS = 8
FULL_S_MAX = 20.0
PROMPT = "and so on, word by word, " * 400


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """The folder is a file system of DISK_BYTES; skipped where the user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file takes all space that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


async def ask(running: Running, client: int, stop: asyncio.Event) -> int:
    """One request after another until told to stop; returns how many were answered."""
    answered = 0
    while not stop.is_set():
        answer = await running.openai.completions.create(
            model="tiny", prompt=f"client {client}, turn {answered % 7}: {PROMPT}", max_tokens=1
        )
        assert answer.usage is not None
        answered += 1
    return answered


async def test_disk_full_for_longer_than_the_journal_lasts(tmp_path: Path) -> None:
    """Requests are answered; every decision is in the log, or counted as dropped by it."""
    with small_disk(tmp_path / "disk"):
        nats = EmbeddedNats(tmp_path / "disk" / "nats")
        await nats.start()
        try:
            file = tmp_path / "small.yaml"
            access = {"nkey": str(nats.credentials.nkey_file)}
            log = {"nats": [nats.url], "credentials": access, "max_bytes": "1GiB"}
            workers = [{"engine": "simulated", "count": 2, "engine_args": {"capacity_blocks": 2000, "eos_every": 0}}]
            value = {"version": 1, "log": log, "workers": workers, "frontend": {"journal_max": "1MiB"}}
            file.write_text(json.dumps(value))
            async with up(tmp_path / "data", "-f", str(file)) as running:
                await _fill_and_free(running, nats, tmp_path / "disk")
        finally:
            await nats.stop()


async def _fill_and_free(running: Running, nats: EmbeddedNats, disk: Path) -> None:
    stop = asyncio.Event()
    clients = [asyncio.create_task(ask(running, number, stop)) for number in range(CLIENTS)]
    await asyncio.sleep(1)
    ballast = fill(disk)
    began = time.monotonic()

    def overflowed() -> bool:
        return dropped(running) > 100

    for _ in range(16):
        await asyncio.sleep(1)
        s = running.state("frontend-0")
        print(
            s["log_away_s"],
            s["outbox"],
            s["journal"],
            s["ahead"],
            s["in_flight"],
            s["cursor"],
            os.popen(f"df {disk} | tail -1").read(),
        )
        if overflowed():
            break
    print("full after", time.monotonic() - began)
    ballast.unlink()
    await nats.stop()
    await nats.start()
    await eventually(lambda: running.state("frontend-0")["log_away_s"] == 0, "the log", 30)
    stop.set()
    answered = sum(await asyncio.gather(*clients))
    await eventually(lambda: not running.state("frontend-0")["outbox"]["events"], "the log caught up", 30)
    print("answered", answered)
    text = contrail("replay", "verify", "--data", str(running.data))
    print(text.stdout, text.stderr, text.returncode)
    text = contrail("doctor", "--data", str(running.data))
    print(text.stdout, text.stderr, text.returncode)


def dropped(running: Running) -> int:
    import urllib.request

    ops = running.part("frontend-0")["ops"]
    with urllib.request.urlopen(f"http://{ops}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("contrail_appends_total") and "dropped_events" in line and "routing" in line:
                return int(float(line.rsplit(" ", 1)[1]))
    return 0
