"""The ways in which a log loses history, each done to a running deployment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from core.snapshot_manifest import Manifest
from core.subjects import ROUTING, SNAPSHOTS, kv_stream, subject
from streams.jetstream.jetstream_log import JetStreamLog
from streams.snapshot_store import SnapshotStore
from tests.chaos.loss_site import LossSite
from tests.e2e.deployment import contrail
from tests.fixtures.eventually import eventually

LOST_S = 6.0
"""Load between the copy of a store and its return: what is rolled back."""
SMALL_DISK_MB = 260
KV = kv_stream(0)


class Fault(NamedTuple):
    """One way."""

    name: str
    harm: Callable[[LossSite], Awaitable[None]]
    """Returns when the fault is over."""
    log: Mapping[str, Any] = MappingProxyType({})
    """Settings of the log beside the site's own."""
    names: str = "lost history"
    """A pattern: each command's sentence on the loss matches it."""
    loses: bool = True
    """History is lost, and is to be named."""
    drops: bool = False
    """Decisions may be dropped: that is to be named if answered requests have no decision in the log."""
    small_disk: bool = False

    @asynccontextmanager
    async def disk(self, folder: Path) -> AsyncIterator[Path]:
        """The folder of NATS and of the deployment: on a file system of its own if the fault fills that."""
        if not self.small_disk:
            yield folder
            return
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(disk)], check=True)
        try:
            yield disk
        finally:
            subprocess.run(["umount", str(disk)], check=True)


async def _deleted(site: LossSite) -> None:
    """A message of a front end and one of a worker, from the middle of their streams."""
    for stream in (ROUTING, KV):
        state = await site.state(stream)
        middle = (state["first_seq"] + state["last_seq"]) // 2
        async with site.broker() as broker:
            await broker.call("STREAM.MSG.DELETE", stream, {"seq": middle, "no_erase": True})


async def _purged(site: LossSite) -> None:
    async with site.broker() as broker:
        for stream in (ROUTING, KV):
            await broker.call("STREAM.PURGE", stream, {})


async def _remade(site: LossSite) -> None:
    """The stream keeper or a source makes it again."""
    async with site.broker() as broker:
        await broker.call("STREAM.DELETE", KV)
        await broker.call("STREAM.DELETE", ROUTING)


async def _rolled_back_live(site: LossSite) -> None:
    copy = await site.copy_store()
    await asyncio.sleep(LOST_S)
    await site.roll_back(copy)


async def _rolled_back_stopped(site: LossSite) -> None:
    copy = await site.copy_store()
    await asyncio.sleep(LOST_S)
    await site.stop()
    await site.roll_back(copy)
    await site.start()


async def _one_rolled_back(site: LossSite) -> None:
    copy = await site.copy_store()
    await asyncio.sleep(LOST_S)
    await site.stop()
    await site.roll_back(copy, KV)
    await site.start()


async def _snapshot_forged(site: LossSite) -> None:
    """A manifest for each field, forged there; the newest is the last. Then both front ends start anew."""
    done = await asyncio.to_thread(contrail, "snapshots", "take", "--data", str(site.running.data))
    assert done.returncode == 0, done.stderr
    async with site.running.log() as log:
        good = (await SnapshotStore(log, "default", site.running.connection.key.chain_key).manifests())[0]
        good = msgspec.structs.replace(good, before_seq=1)
        for manifest in forged(good):
            await _append_manifest(log, manifest)
    restarted = await asyncio.to_thread(contrail, "restart", "--data", str(site.running.data), timeout_s=120)
    assert restarted.returncode == 0, restarted.stderr


def forged(good: Manifest) -> list[Manifest]:
    """The manifest with each of its fields changed, one at a time; those that no replica may start from come last."""
    replace = msgspec.structs.replace
    cursor = {stream: replace(at, seq=max(0, at.seq - 1)) for stream, at in good.cursor.items()}
    heads = {stream: replace(at, head="0" * 32) for stream, at in good.cursor.items()}
    digests = {stream: replace(at, digest="0" * 16) for stream, at in good.cursor.items()}
    epochs = {stream: replace(at, epoch=at.epoch + 1) for stream, at in good.cursor.items()}
    no_start = [
        replace(good, v=99),
        replace(good, id="forged"),
        replace(good, fold_version=good.fold_version + 1),
        *(replace(good, cursor=it) for it in (cursor, heads, digests, epochs, {})),
        replace(good, digest="0" * 16),
        replace(good, incomplete=7),
        replace(good, chunks=good.chunks + 1),
        replace(good, first_seq=good.first_seq + 1),
        replace(good, size_bytes=good.size_bytes + 1),
        replace(good, checksum="0" * 32),
    ]
    starts = [
        replace(good, before_seq=0),
        replace(good, made_ms=good.made_ms + 10**12),
        replace(good, by="stranger"),
        replace(good, fence=2**62),
    ]
    return starts + no_start


async def _append_manifest(log: JetStreamLog, manifest: Manifest) -> None:
    where = subject("default", SNAPSHOTS, "manifest")
    last = await log.last(SNAPSHOTS, where)
    assert last is not None
    if manifest.before_seq:
        manifest = msgspec.structs.replace(manifest, before_seq=last.seq)
    await log.append(SNAPSHOTS, where, manifest.to_bytes(), f"forged-{time.time_ns()}", last.seq)


async def _journal_torn(site: LossSite) -> None:
    """A front end is killed while the log is away, and its journal loses its second half before the next one reads."""
    await site.nats.stop()
    await asyncio.sleep(2.0)
    victim = site.running.part("frontend-0")
    os.kill(victim["pid"], signal.SIGSTOP)
    torn = [path for path in site.running.data.rglob("*.journal") if victim["id"] in path.name]
    assert torn, "the front end has no journal"
    for path in torn:
        with path.open("r+b") as file:
            used = len(file.read().rstrip(b"\0"))
            file.seek(used // 2)
            file.write(b"\xff" * (used - used // 2))
    os.kill(victim["pid"], signal.SIGKILL)
    await site.nats.start()
    await eventually(lambda: _pid(site, victim["name"]) not in {None, victim["pid"]}, "a new front end", 60)


def _pid(site: LossSite, name: str) -> int | None:
    """None while the part is not there."""
    return next((part["pid"] for part in site.running.run()["parts"] if part["name"] == name), None)


def _full_for(for_s: float) -> Callable[[LossSite], Awaitable[None]]:
    async def full(site: LossSite) -> None:
        """Another program takes what is free of the disk, and gives it back; NATS is started again, as a supervisor
        would."""
        filler = site.disk / "filler"
        with filler.open("wb") as file:
            while True:
                try:
                    file.write(bytes(1 << 20))
                    file.flush()
                except OSError:
                    break
        ends_s = time.monotonic() + for_s
        while time.monotonic() < ends_s:
            await asyncio.sleep(0.5)
        filler.unlink()
        assert not site.nats.healthy()
        await site.nats.stop()
        await site.nats.start()

    return full


async def _small(site: LossSite) -> None:
    """No harm beside limits that hold a minute of history or less."""
    await asyncio.sleep(20.0)


def faults(full_s: float = 25.0) -> dict[str, Fault]:
    """All, by name."""
    return {
        fault.name: fault
        for fault in (
            Fault("deleted", _deleted),
            Fault("purged", _purged),
            Fault("remade", _remade),
            Fault("rolled-back-live", _rolled_back_live),
            Fault("rolled-back-stopped", _rolled_back_stopped),
            Fault("one-rolled-back", _one_rolled_back),
            Fault("snapshot-forged", _snapshot_forged, names="snapshot"),
            Fault("journal-torn", _journal_torn, names="dropped|missing before routing", loses=False, drops=True),
            Fault(
                "disk-full",
                _full_for(full_s),
                {"max_bytes": "64MiB"},
                names="dropped|lost",
                loses=False,
                drops=True,
                small_disk=True,
            ),
            Fault("small-log", _small, {"max_bytes": "2MiB"}, names="history|retention|cut", loses=False),
        )
    }
