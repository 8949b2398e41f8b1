"""`contrail snapshots`: taken, listed, verified, on a real log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.consistency.snapshot_schedule import CLAIM
from api.cli.inspect.snapshot_verification import SnapshotStatus, take_fenced, unusable
from api.cli.inspect.snapshots import SnapshotListing, snapshots, snapshots_text
from api.cli.renderer import render
from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.errors import CallerError, WrongSequence
from core.events import BlocksStored, Event, WorkerJoined
from core.ids import Epoch, SourceId, StreamSeq, new_id
from core.prompt import hashes_to_bytes
from core.snapshot_manifest import At, Manifest
from core.subjects import SNAPSHOTS, kv_stream, subject
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, encode
from projections.runner.rebuild import rebuild
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.etcd.etcd_registry import EtcdRegistry
from streams.log import StreamState
from streams.snapshot_store import Coverage, SnapshotStore
from tests.api.deployed import Deployed, deployed

KV = kv_stream(0)
JOINED = WorkerJoined(
    name="decode-0", model="tiny", role="decode", engine="simulated", block_size=16, capacity_blocks=100,
    context_max=4096, address="127.0.0.1:1",
)  # fmt: skip


class Source:
    """A worker that writes its chain to the real log."""

    def __init__(self, here: Deployed) -> None:
        self._here = here
        self.id = new_id()
        self._n, self._head, self._last = 0, CHAIN_START, StreamSeq(0)

    async def say(self, *events: Event) -> None:
        payload = encode_message(SourceId(self.id), self._n, self._head, 0, [encode_event(event) for event in events])
        name = subject(self._here.connection.namespace, KV, self.id)
        self._last = await self._here.log.append(KV, name, payload, f"{self.id}:{self._n}", self._last)
        self._n, self._head = self._n + 1, digest(payload, self._here.connection.key.chain_key)


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server) as it:
        yield it


@pytest.fixture
async def worker(here: Deployed) -> Source:
    """A worker with three blocks."""
    it = Source(here)
    await it.say(JOINED)
    await it.say(stored(1, 2, 3))
    return it


def stored(*blocks: int) -> BlocksStored:
    return BlocksStored(hashes=hashes_to_bytes(blocks))


async def ok(here: Deployed, *words: str) -> Any:
    """What the command says with --json when all is well."""
    status, said = await here.json(snapshots, *words)
    assert status == 0, said
    return said


async def test_a_snapshot_is_taken_listed_and_verified(here: Deployed, worker: Source) -> None:
    """What `take` writes, `list` shows as usable, and `verify` finds to be what the log comes to."""
    taken = await ok(here, "take")
    await worker.say(stored(4))

    said = await ok(here)
    assert [(it["id"], it["usable"], it["messages"], it["by"]) for it in said["snapshots"]] == [
        (taken["id"], True, 2, "contrail snapshots take")
    ]
    assert said["snapshots"][0]["cursor"]["kv_0"]["seq"] == 2
    kv = next(it for it in said["coverage"] if it["stream"] == "kv_0")
    assert (kv["first_seq"], kv["last_seq"], kv["snapshot_before"]) == (1, 3, True)
    assert said["warnings"] == []

    found = await ok(here, "verify")
    assert (found["id"], found["whole"], found["agree"], found["blocks"]) == (taken["id"], True, True, 3)
    assert found["compared"] == {"kv_0": 3}
    assert found["ok"] is True


async def test_take_goes_on_beside_the_elected_writer(here: Deployed, worker: Source) -> None:
    """Who is elected keeps its claim; a snapshot of the operator's is made in its name, and so is its next one."""
    fence = await here.registry.claim(CLAIM, b"{}")
    assert fence is not None
    taken = await ok(here, "take")
    assert taken["fence"] == fence
    again = await ok(here, "take", "--fence", str(fence), "--by", "frontend-0")
    assert (again["by"], again["fence"]) == ("frontend-0", fence)
    assert len((await ok(here))["snapshots"]) == 2


async def test_take_gives_its_claim_back(here: Deployed, worker: Source) -> None:
    """A replica can be elected afterwards, and its claim is a later one."""
    taken = await ok(here, "take")
    fence = await here.registry.claim(CLAIM, b"{}")
    assert fence is not None
    assert fence > taken["fence"] > 0


async def test_a_writer_that_was_replaced_is_fenced(here: Deployed, worker: Source) -> None:
    """After a snapshot under a later claim, one under an older claim is refused."""
    await ok(here, "take", "--fence", "7")
    result = await here.run(snapshots, "take", "--fence", "6")
    assert isinstance(result.exception, WrongSequence)
    assert len((await ok(here))["snapshots"]) == 1


async def test_two_at_once_do_not_mix(here: Deployed, worker: Source, etcd_server: EmbeddedEtcd) -> None:
    """Whatever two operators do at the same time, every snapshot that stands is whole."""
    namespace, key = here.connection.namespace, here.connection.key.chain_key
    other = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    store = SnapshotStore(here.log, namespace, key)
    await asyncio.gather(
        *(take_fenced(here.log, registry, store, key, "test") for registry in (here.registry, other)),
        return_exceptions=True,
    )
    await other.close()
    said = await ok(here)
    assert said["snapshots"]
    for it in said["snapshots"]:
        assert (await ok(here, "verify", it["id"]))["agree"] is True


async def test_a_broken_snapshot_is_a_no(here: Deployed, worker: Source) -> None:
    """Chunks that are gone, or a content that is none: status 1, and the text says that the one before it counts."""
    good = await ok(here, "take")
    broken = await ok(here, "take")
    manifest = msgspec.convert({key: broken[key] for key in Manifest.__struct_fields__}, Manifest)
    connection = here.log._connection
    name = f"contrail_{here.connection.namespace}_snapshots"
    await connection.call(f"$JS.API.STREAM.MSG.DELETE.{name}", {"seq": manifest.first_seq})
    result = await here.run(snapshots, "verify")
    assert result.exit_code == 1
    assert f"snapshot {broken['id']} is broken" in result.stdout
    assert (await ok(here, "verify", good["id"]))["whole"] is True


async def test_a_snapshot_of_a_false_fold_is_a_no(here: Deployed, worker: Source) -> None:
    """One that was not folded from this log is whole, and still found: the log alone comes to something else."""
    content, draft = await false_fold(here, worker)
    await SnapshotStore(here.log, here.connection.namespace, here.connection.key.chain_key).write(content, draft)
    status, found = await here.json(snapshots, "verify")
    assert (status, found["whole"], found["agree"], found["ok"]) == (1, True, False, False)
    assert [it["stream"] for it in found["differences"]] == ["kv_0"]
    result = await here.run(snapshots, "verify")
    assert "it is not what the log alone comes to" in result.stdout


async def false_fold(here: Deployed, worker: Source) -> tuple[list[bytes], Manifest]:
    """A fold of the log with one block behind its back, and a manifest that fits it."""
    state = (await rebuild(here.log, here.connection.key.chain_key, None)).state
    before = state.digest
    payload = encode_message(SourceId(worker.id), 2, worker._head, 0, [encode_event(stored(9))])
    kv = state.kv[KV]
    kv.apply(worker.id, decode_message(payload), bytes(16))
    assert state.digest != before
    return encode(state), Manifest(
        id="false", fold_version=FOLD_VERSION, made_ms=1, by="x", fence=99, cursor=cursor_of(state),
        digest=f"{state.digest:016x}", incomplete=0, chunks=0, first_seq=0, size_bytes=0, checksum="",
    )  # fmt: skip


async def test_none_is_not_an_error_until_one_is_named(here: Deployed) -> None:
    """The list of none is empty; to verify one there must be one."""
    assert (await ok(here))["snapshots"] == []
    assert "there is no snapshot: take one" in (await here.run(snapshots)).stdout
    result = await here.run(snapshots, "verify", "nosuch")
    assert isinstance(result.exception, CallerError)
    assert "there is no snapshot nosuch" in str(result.exception)


def test_when_a_snapshot_is_of_no_use() -> None:
    """Another fold version, a stream that is gone, made anew, ends before it, or was cut behind it."""
    manifest = made()
    held = StreamState(Epoch(1), StreamSeq(5), StreamSeq(20), 16, 100)
    assert unusable(manifest, {KV: held}, 2) == ""
    assert unusable(manifest, {KV: held._replace(first_seq=StreamSeq(11))}, 2) == ""
    assert "was cut" in unusable(manifest, {KV: held._replace(first_seq=StreamSeq(12))}, 2)
    assert "ends before it" in unusable(manifest, {KV: held._replace(last_seq=StreamSeq(9))}, 2)
    assert "made anew" in unusable(manifest, {KV: held._replace(epoch=Epoch(2))}, 2)
    assert "is gone" in unusable(manifest, {}, 2)
    assert "fold version 2" in unusable(manifest, {KV: held}, 3)


def made() -> Manifest:
    return Manifest(
        id="20260101t000000-000-7", fold_version=2, made_ms=0, by="frontend-0", fence=7,
        cursor={"kv_0": At(1, 10, "", "")}, digest="d" * 16, incomplete=0, chunks=1, first_seq=1, size_bytes=2048,
        checksum="",
    )  # fmt: skip


def test_the_table() -> None:
    """Snapshots with what they stand for; then each stream's coverage, and what retention took."""
    covered = [
        Coverage(KV, StreamSeq(1), StreamSeq(20), StreamSeq(1), False),
        Coverage(SNAPSHOTS, StreamSeq(30), StreamSeq(40), None, True),
    ]
    lines = render(
        snapshots_text(SnapshotListing([SnapshotStatus(made(), "kv_0 was made anew since")], covered))
    ).splitlines()
    assert lines == [
        "snapshot               made                      by          messages   size  fold  digest            usable",
        (
            "20260101t000000-000-7  1970-01-01T00:00:00.000Z  frontend-0        10  2 KiB     2  dddddddddddddddd  "
            "no: kv_0 was made anew since"
        ),
        "",
        "stream     oldest  newest  replayable",
        "kv_0            1      20  all that is retained",
        "snapshots      30      40  not yet: its head was cut and no snapshot lies before what is left",
        (
            "warning: snapshots: retention took messages that follow the newest snapshot; take snapshots more often "
            "(log.snapshot_every), or give log.max_bytes more"
        ),
    ]
