"""The log's disk is full for longer than the journal lasts: decisions are dropped, and everything says so."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streams.embedded.embedded_nats import EmbeddedNats
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

DISK_BYTES = 48 * 1024 * 1024
CLIENTS = 8
FULL_S_MAX = 20.0
"""Bound of the time until the journal has no room."""
PROMPT = "and so on, word by word, " * 200
ENGINE = {
    "capacity_blocks": 4000, "block_size": 4, "eos_every": 0, "prefill_us_per_token": 0.1, "prefill_us_per_pass": 1,
    "decode_us_per_step": 1,
}  # fmt: skip
"""A quick one, whose short blocks make decisions long."""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """The folder is a file system of DISK_BYTES."""
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


async def ask(running: Running, client: int, stopping: asyncio.Event) -> int:
    """One request after another until told to stop; returns how many were answered."""
    answered = 0
    while not stopping.is_set():
        prompt = f"{client}.{answered}: {PROMPT}"  # of which no other decision has a block
        await running.openai.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        answered += 1
    return answered


def dropped(running: Running) -> int:
    """Decisions that the front end says it dropped."""
    found: int = running.state("frontend-0")["dropped"]["decisions"]
    return found


async def test_disk_full_for_longer_than_the_journal_lasts(tmp_path: Path) -> None:
    """Each answered request has its decision in the log, or is counted there as dropped: verify and doctor name it."""
    disk = tmp_path / "disk"
    with small_disk(disk):
        nats = EmbeddedNats(disk / "nats")
        await nats.start()
        try:
            async with up(tmp_path / "data", "-f", str(config(tmp_path, nats))) as running:
                answered = await _fill_and_free(running, nats, disk)
                _assert_named(running, answered)
        finally:
            await nats.stop()


def config(folder: Path, nats: EmbeddedNats) -> Path:
    """The smallest journal, and the log on that server."""
    log = {"nats": [nats.url], "credentials": {"nkey": str(nats.credentials.nkey_file)}, "max_bytes": "1GiB"}
    workers = [{"engine": "simulated", "count": 2, "engine_args": ENGINE}]
    file = folder / "small.yaml"
    file.write_text(json.dumps({"version": 1, "log": log, "workers": workers, "frontend": {"journal_max": "1MiB"}}))
    return file


async def _fill_and_free(running: Running, nats: EmbeddedNats, disk: Path) -> int:
    stopping = asyncio.Event()
    clients = [asyncio.create_task(ask(running, number, stopping)) for number in range(CLIENTS)]
    await asyncio.sleep(1)
    ballast = fill(disk)
    await eventually(lambda: dropped(running) > 20, "a full journal", FULL_S_MAX)
    ballast.unlink()
    await nats.stop()
    await nats.start()
    await eventually(lambda: not running.state("frontend-0")["log_away_s"], "the log", 20)
    stopping.set()
    answered = sum(await asyncio.gather(*clients))
    await eventually(lambda: not running.state("frontend-0")["outbox"]["events"], "the log has all", 20)
    return answered


def _assert_named(running: Running, answered: int) -> None:
    count = dropped(running)
    status, verified = _json(running, "replay", "verify")
    assert (status, verified["holds"], verified["dropped"]["decisions"]) == (0, True, count)
    assert verified["verified"] + count == answered
    assert verified["counts"]["missing"] == 0
    (place,) = verified["dropped"]["places"]
    assert place["replica_name"] == "frontend-0"
    said = contrail("replay", "verify", "--data", str(running.data)).stdout
    assert f"{count:,} more were dropped and are in no log" in said
    _, checked = _json(running, "doctor")
    finding = next(check for check in checked["checks"] if check["name"] == "dropped")
    assert finding["status"] == "warning"
    assert f"{count:,} decisions of frontend-0 were dropped between" in finding["text"]


def _json(running: Running, *words: str) -> tuple[int, dict[str, Any]]:
    done = contrail(*words, "--data", str(running.data), "--json")
    return done.returncode, json.loads(done.stdout)
