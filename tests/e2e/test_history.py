"""History changed behind our back, on real servers under load: it is noticed, healed, and no request fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path

from core.codec import decode_message
from core.events import WorkerLost
from core.ids import StreamName, StreamSeq
from tests.chaos.broker import broker_of
from tests.chaos.planes import OwnPlanes, own_planes
from tests.fixtures.eventually import eventually

HEALED_S = 20.0
"""Within this, replicas know every worker's cache again."""
LEASE_S = 10
STREAMS = ("kv_0", "load", "routing")

Messages = dict[tuple[str, str], set[int]]
"""By stream and source, which of its messages are there."""


async def test_a_store_put_back_to_an_older_copy(tmp_path: Path) -> None:
    """Acknowledged events are gone and their sequence numbers used again: replicas rebuild, workers restate, all
    digests agree again, and the gaps name exactly the messages that are missing."""
    async with own_planes(tmp_path) as it:
        kept = await it.keep_store()
        await it.answered(30)
        before = await messages(it)
        await it.put_back(kept)
        await it.answered(20)
        await healed(it)
        await it.answered(30)
        await it.assert_whole()
        there = await messages(it)
        missing = lost(before, there)
        assert missing, "the copy was as new as the store"
        for name in frontends(it):
            said = named(it, name)
            assert said >= missing
            assert {lacking for lacking in said if lacking[2] in there.get(lacking[:2], ())} == set()


async def test_streams_deleted_and_made_again(tmp_path: Path) -> None:
    """One stream after the other is deleted while all run: it is made again, and holds all that is so now."""
    async with own_planes(tmp_path) as it:
        for stream in STREAMS:
            async with broker_of(it.running) as broker:
                await broker.call("STREAM.DELETE", stream)
            await it.answered(20)
            await healed(it)
        await it.assert_whole()


async def test_messages_harmed(tmp_path: Path) -> None:
    """Messages deleted through the broker's own API, then one with a flipped byte: whoever reads them notices, and
    what they said is said again."""
    async with own_planes(tmp_path) as it:
        await _delete_some(it)
        await _read_again_by_a_new_replica(it)
        await it.answered(20)
        await _flip_a_byte(it)
        await _read_again_by_a_new_replica(it)
        await healed(it)
        await it.assert_whole()


async def _delete_some(it: OwnPlanes) -> None:
    """One in the middle of each stream, and the last one of it, whatever that is by then."""
    async with broker_of(it.running) as broker, it.running.log() as log:
        for stream in STREAMS:
            last = (await broker.call("STREAM.INFO", stream))["state"]["last_seq"]
            for seq in (StreamSeq(last // 2), last):
                await broker.call("STREAM.MSG.DELETE", stream, {"seq": seq})
        assert [name for name in await log.streams() if name in STREAMS] == list(STREAMS)


async def _flip_a_byte(it: OwnPlanes) -> None:
    """In the middle of a message of each stream on disk, while the broker is away."""
    payloads = {}
    async with it.running.log() as log:
        for stream in STREAMS:
            seq, middle = (await log.state(StreamName(stream))).last_seq // 3, None
            while middle is None:  # that one may be deleted
                seq += 1
                middle = await log.at(StreamName(stream), StreamSeq(seq))
            payloads[stream] = middle.payload
    await it.nats.stop()
    for stream, payload in payloads.items():
        block = next(path for path in it.blocks_of(stream) if payload in path.read_bytes())
        content = bytearray(block.read_bytes())
        content[content.index(payload) + len(payload) // 2] ^= 0x40
        block.write_bytes(content)
    await it.nats.start()


async def _read_again_by_a_new_replica(it: OwnPlanes) -> None:
    """One front end is started again and so reads the log from its start."""
    before = it.running.part("frontend-0")
    os.kill(before["pid"], signal.SIGTERM)
    await eventually(lambda: _restarted(it, before["pid"]), "frontend-0 again", 60)


def _restarted(it: OwnPlanes, pid: int) -> bool:
    part = next((part for part in it.running.run()["parts"] if part["name"] == "frontend-0"), None)
    if part is None or part["pid"] == pid or part["ops"] is None:
        return False
    try:
        return bool(it.running.get(part["ops"], "/ready"))
    except OSError:
        return False


async def test_etcd_wiped_under_load(tmp_path: Path) -> None:
    """etcd is started empty: no worker is evicted, all register again, no request fails."""
    async with own_planes(tmp_path) as it:
        workers = it.running.workers()
        await it.wipe_etcd()
        await asyncio.gather(asyncio.sleep(LEASE_S + 2), it.answered(60))
        assert it.running.workers() == workers
        kv = await it.running.events("kv_0")
        assert not [event for event in kv if isinstance(event, WorkerLost)]
        assert set(it.running.state("frontend-0")["workers"]) == set(workers)
        await it.assert_whole()


async def healed(it: OwnPlanes) -> None:
    """Every replica knows every source again, while requests go on."""
    seen: list[tuple[int, int, dict[str, int]]] = []

    def whole() -> bool:
        states = [it.running.state(name) for name in frontends(it)]
        seen[:] = [(state["incomplete"], state["lag_events"], state["workers"]) for state in states]
        return all(not incomplete and len(workers) == it.workers for incomplete, _, workers in seen)

    try:
        await eventually(whole, "complete folds", HEALED_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: incomplete, lag and workers are {seen}") from None


def frontends(it: OwnPlanes) -> list[str]:
    return [f"frontend-{number}" for number in range(it.replicas)]


async def messages(it: OwnPlanes) -> Messages:
    """Every message that the log holds now."""
    found: Messages = defaultdict(set)
    async with it.running.log() as log:
        for stream in await log.streams():
            async for record in log.read(stream, StreamSeq(1)):
                if stream in STREAMS:
                    message = decode_message(record.payload)
                    found[stream, message.source].add(message.n)
    return found


def lost(before: Messages, after: Messages) -> set[tuple[str, str, int]]:
    """What was there and is not, of sources that spoke again after it."""
    return {
        (*key, n) for key, there in before.items() if after.get(key) for n in there - after[key] if n < max(after[key])
    }


def named(it: OwnPlanes, frontend: str) -> set[tuple[str, str, int]]:
    """What the replica says is missing."""
    gaps = it.running.state(frontend)["gaps"]
    return {(gap["stream"], gap["source"], n) for gap in gaps for n in range(gap["n_from"], gap["n_to"] + 1)}
