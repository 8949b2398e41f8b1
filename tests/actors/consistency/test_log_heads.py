"""Heads of streams are kept in the registry, and each way in which the log may lose history contradicts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from actors.consistency.log_heads import (
    HEADS_KEY,
    KEEP_EVERY_S,
    LOSSES_KEPT,
    LOSSES_KEPT_MS,
    KeptHeads,
    LogHeads,
    LogLoss,
    kept_heads,
)
from core.events.routing import LOST_HISTORY
from core.ids import StreamName, StreamSeq
from core.subjects import ROUTING
from projections.folds.state import State
from streams.broker_clock import BrokerClock
from streams.log import StreamState
from streams.log_watch import LogWatch
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.projections.facts import stored
from tests.projections.made_log import KV, A, MadeLog, made
from tests.projections.speaker import CHAIN_KEY

CHECK_MS = round(KEEP_EVERY_S * 1000)


class Replica:
    """A replica that folds and compares when it is told to."""

    def __init__(self, it: MadeLog, store: MemoryRegistryStore) -> None:
        self.heard: list[LogLoss] = []
        self.state = State(CHAIN_KEY)
        self.registry = MemoryRegistry(store)
        self.watch = LogWatch(it.log, BrokerClock(it.clock))
        self.heads = LogHeads(it.log, self.watch.poll, self.registry, it.clock, self.state, self.heard.append)
        self._it = it

    async def step(self) -> list[str]:
        """The kinds of the losses that it learns of by one comparison; its fold is the log's before and after."""
        await self.fold()
        before = len(self.heard)
        self._it.clock.advance(CHECK_MS)
        await self.heads.step()
        return [f"{loss.stream} {loss.kind}" for loss in self.heard[before:]]

    async def fold(self) -> None:
        self.state.become(await self._it.folded())

    async def kept(self) -> KeptHeads:
        found = await kept_heads(self.registry)
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is confirmed at once."""
    monkeypatch.setattr("actors.consistency.log_heads.CONFIRM_S", 0)


def cut(it: MadeLog) -> None:
    it.log.cut(KV, StreamSeq(3))


def written_over(it: MadeLog) -> None:
    record = next(record for record in it.log._streams[KV]._records if record.seq == 5)
    it.log.rewrite(KV, StreamSeq(5), record.payload + b" ")


def purged(it: MadeLog) -> None:
    it.log.expire(KV, StreamSeq(6))


def deleted(it: MadeLog) -> None:
    it.log.delete(KV, StreamSeq(2))


def remade(it: MadeLog) -> None:
    it.log.remake(KV)


@pytest.mark.parametrize(
    ("harm", "kind"),
    [(cut, "rolled back"), (written_over, "rolled back"), (purged, "purged"), (deleted, "deleted"), (remade, "remade")],
)
async def test_each_loss_is_found_while_all_was_stopped(harm: Callable[[MadeLog], None], kind: str) -> None:
    """By the first comparison of the next replica, once; a second replica reads the same sentence."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    before = Replica(it, store)
    assert await before.step() == []
    assert (await before.kept()).streams[KV].seq == 5
    harm(it)
    after, other = Replica(it, store), Replica(it, store)
    assert await after.step() == [f"{KV} {kind}"]
    assert await after.step() == []
    assert after.heard[0].text.startswith(f"{KV} {LOST_HISTORY}: ")
    assert await before.step() == [f"{KV} {kind}"]
    await it.say(KV, A, stored(7))
    assert await other.step() == []
    assert {each.heads.losses for each in (before, after, other)} == {tuple(after.heard)}
    assert (await other.kept()).losses == tuple(after.heard)


@pytest.mark.parametrize("harm", [cut, written_over])
async def test_a_rollback_has_one_sentence_whoever_looks_when(harm: Callable[[MadeLog], None]) -> None:
    """Whether another message stands at the former end by then or not. Before, two replicas could say two."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    before = Replica(it, store)
    await before.step()
    harm(it)
    await before.step()
    assert [loss.text for loss in before.heard] == [
        f"{KV} {LOST_HISTORY}: the stream was rolled back, its end at {KV}:5 is gone"
    ]


async def test_a_second_deletion_is_a_second_loss() -> None:
    """Also while nothing is written, so that the kept head is the same."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    one = Replica(it, store)
    await one.step()
    for seq in (2, 3):
        it.log.delete(KV, StreamSeq(seq))
        assert await one.step() == [f"{KV} deleted"]
    assert [loss.text for loss in one.heard] == [
        f"{KV} {LOST_HISTORY}: 1 message was deleted inside the stream",
        f"{KV} {LOST_HISTORY}: 2 messages were deleted inside the stream",
    ]


async def test_a_comparison_polls_each_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it keeps heads."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    one, polls, state = Replica(it, store), Counter[str](), it.log.state

    async def counted(stream: StreamName) -> StreamState:
        polls[stream] += 1
        return await state(stream)

    await one.fold()
    monkeypatch.setattr(it.log, "state", counted)
    await one.heads.step()
    assert (await one.kept()).streams
    assert polls == dict.fromkeys(await it.log.streams(), 1)


async def test_retention_is_no_loss() -> None:
    """A stream at its limits may drop what was its end."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    one = Replica(it, store)
    await one.step()
    state = it.log.state

    async def limited(stream: object) -> object:
        found = await state(stream)  # type: ignore[arg-type]
        return found._replace(age_max_s=KEEP_EVERY_S)

    it.log.state = limited  # type: ignore[method-assign, assignment]
    purged(it)
    it.clock.advance(CHECK_MS)
    assert await Replica(it, store).step() == []


async def test_a_purge_long_before_the_age_limit_is_a_loss() -> None:
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    await Replica(it, store).step()
    state = it.log.state

    async def limited(stream: object) -> object:
        found = await state(stream)  # type: ignore[arg-type]
        return found._replace(age_max_s=3600)

    it.log.state = limited  # type: ignore[method-assign, assignment]
    purged(it)
    assert await Replica(it, store).step() == [f"{KV} purged"]


async def test_messages_deleted_before_a_head_was_kept_are_no_loss() -> None:
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    deleted(it)
    one = Replica(it, store)
    assert await one.step() == []
    assert (await one.kept()).streams[KV].deleted == 1
    assert await Replica(it, store).step() == []


async def test_a_loss_that_is_seen_once_is_none() -> None:
    """A new leader of a stream answers before it has caught up."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    await Replica(it, store).step()
    other = Replica(it, store)
    await other.fold()
    state, asked = it.log.state, []

    async def late(stream: object) -> object:
        found = await state(stream)  # type: ignore[arg-type]
        asked.append(stream)
        return found._replace(last_seq=StreamSeq(found.last_seq - 1)) if asked.count(stream) == 1 else found

    it.log.state = late  # type: ignore[method-assign, assignment]
    it.clock.advance(CHECK_MS)
    await other.heads.step()
    assert asked.count(KV) > 1
    assert other.heard == []


async def test_the_head_of_a_fold_that_the_log_contradicts_is_not_kept() -> None:
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    one = Replica(it, store)
    await one.step()
    written_over(it)
    it.clock.advance(CHECK_MS)
    await one.heads.step()
    assert [loss.kind for loss in one.heard] == ["rolled back"]
    assert KV not in (await one.kept()).streams


async def test_a_head_is_written_every_few_seconds_by_all_replicas_together() -> None:
    """Two replicas, one write in a period; a fold that is behind takes nothing back."""
    it, store = await made(), MemoryRegistryStore()
    replicas = Replica(it, store), Replica(it, store)
    revisions = []
    for _ in range(20):
        await it.grow(1)
        it.clock.advance(CHECK_MS // 4)
        for each in replicas:
            await each.fold()
            await each.heads.step()
        revisions.append(store.revision)
    span_s = 20 * (CHECK_MS / 4 + 3000) / 1000
    assert store.revision <= span_s / KEEP_EVERY_S + 1
    kept = (await replicas[0].kept()).streams
    behind = Replica(it, store)
    await it.grow(1)
    await replicas[0].step()
    it.clock.advance(CHECK_MS)
    await behind.heads.step()
    assert (await behind.kept()).streams[ROUTING].seq > kept[ROUTING].seq


async def test_a_registry_that_is_away_or_empty_hides_no_loss() -> None:
    """What the replica read or put last counts."""
    it, store = await made(), MemoryRegistryStore()
    await it.grow()
    one = Replica(it, store)
    await one.step()
    one.registry.away = True
    cut(it)
    await one.heads.step()
    assert [loss.kind for loss in one.heard] == ["rolled back"]
    one.registry.away = False
    store.wipe()
    await one.step()
    assert await one.step() == []
    assert [loss.kind for loss in (await one.kept()).losses] == ["rolled back"]


async def test_losses_are_bounded_in_number_and_age() -> None:
    """The newest LOSSES_KEPT, for LOSSES_KEPT_MS."""
    it, store = await made(), MemoryRegistryStore()
    one = Replica(it, store)
    for _ in range(LOSSES_KEPT + 3):
        await it.grow(1)
        await one.step()
        it.log.remake(ROUTING)
        await one.step()
    assert (await one.kept()).losses == tuple(one.heard[-LOSSES_KEPT:])
    assert len(one.heard) == LOSSES_KEPT + 3
    it.clock.advance(LOSSES_KEPT_MS)
    await one.step()
    assert one.heads.losses == ()


async def test_a_value_that_is_none_of_ours_is_kept_anew(caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and replaced."""
    it, store = await made(), MemoryRegistryStore()
    one = Replica(it, store)
    await one.registry.put(HEADS_KEY, b"[")
    assert await one.step() == []
    assert "cannot be read" in caplog.text
    assert (await one.kept()).streams
