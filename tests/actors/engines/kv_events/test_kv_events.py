"""vLLM's KV events: what their bytes mean, and that none is missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from actors.engines.engine import CacheChange, CacheCopied, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.kv_event_feed import KvEventFeed
from actors.engines.kv_events.kv_event_reader import KvEventReader
from core.errors import Corrupt

WAIT_S = 10


def batch(*events: Any) -> bytes:
    """A batch as the engine sends it."""
    return msgspec.msgpack.encode([1.5, list(events), 0])


def read(*events: Any) -> list[CacheChange]:
    return KvEventReader().read(batch(*events)).changes


def stored(**fields: Any) -> dict[str, Any]:
    """Two blocks of two tokens as vLLM 0.32 announces them."""
    plain = {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "a_field_of_next_year": 1,
    }
    return plain | fields


def removed(*blocks: Any, group: int = 0) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU", "group_idx": group}


PLAIN = CacheStored((11, 12), None, (1, 2, 3, 4), 2, "device", None, None, indexable=True)


def test_batch_in_order() -> None:
    """The events of a batch keep their order."""
    changes = read(stored(), removed(12, 11), {"type": "AllBlocksCleared"})
    assert changes == [PLAIN, CacheRemoved((12, 11), "device", True), CacheEmptied()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"extra_keys": [["salt"], None]}, PLAIN._replace(cache_salt="salt")),
        ({"lora_name": "a", "extra_keys": [["a"], ["a"]]}, PLAIN._replace(adapter="a")),
        ({"lora_name": "a", "extra_keys": [["a", "a"], ["a"]]}, PLAIN._replace(adapter="a", cache_salt="a")),
        ({"lora_name": "a", "parent_block_hash": 9, "extra_keys": [["a"]] * 2}, PLAIN._replace(adapter="a", parent=9)),
        ({"medium": "CPU"}, PLAIN._replace(tier="host")),
        ({"medium": "STORAGE"}, PLAIN._replace(tier="disk")),
        ({"medium": "TAPE"}, PLAIN._replace(tier="tape", indexable=False)),
        ({"extra_keys": None}, PLAIN._replace(indexable=False)),
        ({"extra_keys": [[["image", 0]], None]}, PLAIN._replace(indexable=False)),
        ({"extra_keys": [[b"embedding"], [b"embedding"]]}, PLAIN._replace(indexable=False)),
        ({"parent_block_hash": 9, "extra_keys": [["?"], None]}, PLAIN._replace(parent=9, indexable=False)),
        ({"kv_cache_spec_kind": "sliding_window"}, PLAIN._replace(indexable=False)),
        ({"kv_cache_spec_kind": "mla_attention"}, PLAIN),
        ({"token_ids": [], "block_size": 0}, PLAIN._replace(tokens=(), block_size=0, indexable=False)),
        ({"block_hashes": [b"\x00\x0b", b"\x00\x0c"]}, PLAIN),
    ],
)
def test_stored(fields: dict[str, Any], expected: CacheStored) -> None:
    """Scope is told where it is sure; whatever is more than tokens, or not sure, is not indexable."""
    assert read(stored(**fields)) == [expected]


def test_copies_in_slower_tiers() -> None:
    """Without `extra_keys` an event of a slower tier names blocks; its tokens and its adapter are not taken."""
    fields: dict[str, Any] = {"medium": "CPU", "extra_keys": None, "lora_name": "a"}
    assert read(stored(**fields)) == [CacheCopied((11, 12), "host")]
    assert read(stored(**fields | {"medium": "STORAGE"})) == [CacheCopied((11, 12), "disk")]
    assert read(stored(**fields | {"kv_cache_spec_kind": "sliding_window"})) == [
        PLAIN._replace(tier="host", adapter="a", indexable=False)
    ]
    bare = fields | {"token_ids": [], "block_size": 0, "kv_cache_spec_kind": None}
    gone = removed(11) | {"medium": "CPU"}
    copy = CacheCopied((11, 12), "host")
    assert read(stored(), stored(**bare), gone, removed(12)) == [
        PLAIN, copy, CacheRemoved((11,), "host", True), CacheRemoved((12,), "device", True),
    ]  # fmt: skip
    assert read(stored(**bare))[0] != copy, "a group of which the device never told the kind"


def test_image_in_the_middle() -> None:
    """Blocks before an image are indexable, those from it on are not."""
    assert read(stored(extra_keys=[["salt"], [["image", 3]]])) == [
        PLAIN._replace(blocks=(11,), tokens=(1, 2), cache_salt="salt"),
        PLAIN._replace(blocks=(12,), tokens=(3, 4), parent=11, indexable=False),
    ]


def test_removed_of_another_kind() -> None:
    """A removal is indexable as the blocks of its group were; a group that never stored is not known."""
    reader = KvEventReader()
    reader.read(batch(stored(), stored(group_idx=1, kv_cache_spec_kind="mamba")))
    changes = reader.read(batch(removed(11), removed(11, group=1), removed(11, group=2))).changes
    assert [change.indexable for change in changes if isinstance(change, CacheRemoved)] == [True, False, False]


def test_older_and_newer_forms() -> None:
    """Arrays with the tag first are read too; an event of an unknown kind is a gap, those around it stand."""
    array = ["BlockStored", *list(stored().values())[1:]]
    changes = read(array, {"type": "BlocksPainted"}, removed(11))
    assert changes[0] == PLAIN
    assert isinstance(changes[1], CacheGap)
    assert changes[2] == CacheRemoved((11,), "device", True)


@pytest.mark.parametrize("payload", [b"", b"\xc1", batch(stored(block_hashes="x")), msgspec.msgpack.encode({"a": 1})])
def test_corrupt(payload: bytes) -> None:
    """What is no batch is Corrupt, not a surprise."""
    with pytest.raises(Corrupt):
        KvEventReader().read(payload)


class Publisher:
    """vLLM's own publisher on a feed's endpoints."""

    def __init__(self, feed: KvEventFeed, buffer_steps: int) -> None:
        from vllm.distributed.kv_events import EventBatch, ZmqEventPublisher  # noqa: PLC0415  (slow, and not always there)

        self._batch = EventBatch
        self._publisher: Any = ZmqEventPublisher(
            0, endpoint=feed.events_endpoint, replay_endpoint=feed.replay_endpoint, buffer_steps=buffer_steps
        )

    def publish(self, number: int) -> None:
        self._publisher.publish(self._batch(ts=time.time(), events=[number]))

    def newest(self) -> int:
        """The batch that was sent last, -1 if none was."""
        return int(self._publisher._buffer[-1][0]) if self._publisher._buffer else -1

    def lose_after(self, frames: int) -> None:
        """Of every answer to a replay only so many frames arrive: a ROUTER socket drops what its pipe does not hold."""
        inner, sent = self._publisher._replay, dict[bytes, int]()

        class Dropping:
            def send_multipart(self, parts: tuple[bytes, ...]) -> None:
                sent[parts[0]] = sent.get(parts[0], 0) + 1
                if sent[parts[0]] <= frames:
                    inner.send_multipart(parts)

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        self._publisher._replay = Dropping()

    def stop(self) -> None:
        self._publisher.shutdown()


class Wire:
    """A feed with what it told, and a publisher that is started by the test."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.gaps: list[str] = []
        self.feed = KvEventFeed(self.take, self.gaps.append)
        self.publishers: list[Publisher] = []

    def take(self, payload: bytes) -> float:
        made_s, (number,), _ = msgspec.msgpack.decode(payload)
        self.taken.append(number)
        return float(made_s)

    def publisher(self, buffer_steps: int = 10_000) -> Publisher:
        self.publishers.append(Publisher(self.feed, buffer_steps))
        return self.publishers[-1]

    async def until(self, so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not so():
                await asyncio.sleep(0.01)


@pytest.fixture
async def wire(recwarn: pytest.WarningsRecorder) -> AsyncIterator[Wire]:
    made = Wire()
    yield made
    await made.feed.stop()
    for publisher in made.publishers:
        publisher.stop()


async def test_catch_up_when_nothing_was(wire: Wire) -> None:
    """An engine that never published is caught up with at once."""
    wire.publisher()
    wire.feed.start()
    await wire.feed.catch_up()
    assert (wire.taken, wire.gaps) == ([], [])


async def test_late_joiner_misses_nothing(wire: Wire) -> None:
    """All batches come once and in order, though the first were published before anybody listened."""
    publisher = wire.publisher()
    for number in range(3_000):
        publisher.publish(number)
    wire.feed.start()
    await wire.feed.catch_up()
    assert wire.taken == list(range(3_000))
    publisher.publish(3_000)
    await wire.until(lambda: len(wire.taken) == 3_001)
    assert wire.gaps == []


async def test_catch_up_waits_for_the_queue(wire: Wire) -> None:
    """What was queued in the engine before the call is taken when it returns, however long the queue is."""
    wire.feed.start()
    publisher = wire.publisher()
    for number in range(20_000):
        publisher.publish(number)
        if number % 5_000 == 4_999:
            await wire.feed.catch_up()
            assert wire.taken[-1:] == [number]
    assert wire.taken == list(range(20_000))
    assert wire.gaps == []


async def test_catch_up_when_answers_are_cut(wire: Wire) -> None:
    """An answer whose last frames were dropped, its end among them, is taken as far as it came and asked for again."""
    publisher = wire.publisher()
    for number in range(1_000):
        publisher.publish(number)
    await wire.until(lambda: publisher.newest() == 999)
    publisher.lose_after(400)
    wire.feed.start()
    await wire.feed.catch_up()
    assert wire.taken == list(range(1_000))
    assert wire.gaps == []


async def test_catch_up_while_busy(wire: Wire) -> None:
    """An engine that never stops publishing is caught up with all the same."""
    wire.feed.start()
    publisher = wire.publisher()
    busy = True

    async def go_on(number: int = 100) -> None:
        while busy:
            publisher.publish(number)
            number += 1
            await asyncio.sleep(0.001)

    for number in range(100):
        publisher.publish(number)
    going = asyncio.create_task(go_on())
    await wire.feed.catch_up()
    busy = False
    await going
    assert wire.taken[:100] == list(range(100))


async def test_gap_is_told(wire: Wire) -> None:
    """Batches that the engine holds no more are told as one gap, and reading goes on with the oldest that it holds."""
    publisher = wire.publisher(buffer_steps=5)
    for number in range(20):
        publisher.publish(number)
    await wire.until(lambda: publisher.newest() == 19)
    wire.feed.start()
    await wire.feed.catch_up()
    assert wire.taken == [15, 16, 17, 18, 19]
    assert len(wire.gaps) == 1
    assert "0 to 14" in wire.gaps[0]
