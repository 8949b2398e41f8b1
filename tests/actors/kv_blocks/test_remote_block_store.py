"""A folder on a network file system, by a stand-in: calls that hang, files that come late, handles that are stale."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.kv_blocks import remote_block_store
from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.bounded_calls import CALL_S, CALLS_MAX, HANG_PAUSE_S, BoundedCalls, FileSystemUnavailable
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.pool_folder import Listing
from actors.kv_blocks.remote_block_store import LOOKUPS_MAX, STAMPS_PER_CALL, PrefixLookup, RemoteBlockStore
from actors.kv_blocks.shared_block_store import SharedBlockStore
from actors.kv_blocks.shared_pool_folder import SharedPoolFolder
from core.clock import ManualClock
from tests.actors.kv_blocks.test_pool_folder import KIND, NOW_MS, name
from tests.actors.kv_blocks.test_shared_pool_folder import PAYLOAD_BYTES, Shared, shared, writer
from tests.fixtures.eventually import eventually

BRIEF_S = 0.2
"""A deadline for calls that hang; the others end in a thousandth of it."""


class Remote:
    """A folder with a keeper, which one worker uses as a remote one."""

    def __init__(self, folder: Path, call_s: float) -> None:
        self.whole = Shared(folder, workers=1)
        self.whole.list()
        self.folder, self.clock = folder, self.whole.clock
        self.counts = DiskCounts(folder.with_name("counts"))
        engine = folder.with_name("engine 0")
        self.inner = SharedBlockStore(folder, writer(0), BlockSeal(KIND), self.counts, engine, self.clock, remote=True)
        self.calls = BoundedCalls(self.counts, self.clock, call_s)
        self.store = RemoteBlockStore(self.inner, self.counts, self.clock, self.calls)

    def put(self, number: int, payload: bytearray | None = None) -> bool:
        given = payload if payload is not None else bytearray([number % 256]) * PAYLOAD_BYTES
        return self.store.put(name(number), memoryview(given), self.store.stamp_now())

    def load(self, number: int) -> bytes | None:
        into = bytearray(PAYLOAD_BYTES)
        return bytes(into) if self.store.load(name(number), memoryview(into)) else None

    def file(self, number: int) -> Path:
        return self.folder / f"{name(number).hex()}.kv"


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    made = Remote(tmp_path / "kv", 10.0)
    yield made
    made.store.close()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Remote]:
    made = Remote(tmp_path / "kv", BRIEF_S)
    yield made
    made.store.close()


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are opened once it is set; it is at first."""
    event = threading.Event()
    event.set()
    opened = os.open

    def late(*given: Any, **more: Any) -> int:
        event.wait(20)
        return opened(*given, **more)

    monkeypatch.setattr(os, "open", late)
    yield event
    event.set()


def raising(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", fail)


async def found(remote: Remote, *numbers: int) -> list[int]:
    lookup = remote.store.find_prefix([name(number) for number in numbers])
    await eventually(lambda: lookup.holds(name(numbers[0])) is not None, "the lookup ends")
    return [number for number in numbers if lookup.holds(name(number))]


async def test_blocks_come_back_and_a_prefix_ends_at_its_first_gap(remote: Remote) -> None:
    assert [remote.put(number) for number in (1, 2, 4)] == [True] * 3
    assert await found(remote, 1, 2, 3, 4) == [1, 2]
    assert remote.load(2) == bytes([2]) * PAYLOAD_BYTES
    assert remote.load(3) is None
    assert remote.counts["calls_overdue"] == 0


async def test_a_file_that_is_seen_late_is_a_miss_until_then(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the attributes that a client of NFS keeps."""
    for number in (1, 2, 3):
        remote.put(number)
    hidden = {name(2)}
    shown = SharedBlockStore.holds
    monkeypatch.setattr(SharedBlockStore, "holds", lambda self, each: each not in hidden and shown(self, each))
    assert await found(remote, 1, 2, 3) == [1]
    hidden.clear()
    assert await found(remote, 1, 2, 3) == [1, 2, 3]


async def test_a_file_that_is_seen_though_it_went_is_a_miss(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.put(1)
    lookup = remote.store.find_prefix([name(1)])
    await eventually(lambda: lookup.holds(name(1)) is True, "found")
    raising(monkeypatch, errno.ESTALE)
    assert remote.load(1) is None
    assert remote.file(1).exists()
    assert sum(remote.counts[f"refused_{reason}"] for reason in ("unreadable", "short", "checksum")) == 0


async def test_a_file_that_cannot_be_read_stays_on_a_network(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of one machine it goes: there the fault is the disk's."""
    remote.put(1)
    raising(monkeypatch, errno.EIO)
    assert remote.load(1) is None
    assert remote.counts["refused_unreadable"] == 1
    assert remote.file(1).exists()
    assert not remote.whole.load(1, 0)
    assert not remote.file(1).exists()


@pytest.mark.parametrize("harm", ["cut", "flip"])
async def test_a_file_that_proves_no_block_goes(remote: Remote, harm: str) -> None:
    remote.put(1)
    raw = bytearray(remote.file(1).read_bytes())
    raw[-1] ^= 1
    remote.file(1).write_bytes(raw[:-100] if harm == "cut" else raw)
    assert remote.load(1) is None
    assert remote.counts["refused_short" if harm == "cut" else "refused_checksum"] == 1
    assert not remote.file(1).exists()


async def test_a_read_that_hangs_writes_nothing_after_its_deadline(hanging: Remote, hang: threading.Event) -> None:
    hanging.put(1)
    hang.clear()
    into = bytearray(b"\xee") * PAYLOAD_BYTES
    assert not hanging.store.load(name(1), memoryview(into))
    assert hanging.counts["calls_overdue"] == 1
    hang.set()
    await eventually(lambda: hanging.counts["loads"] == 1, "the call ends, too late")
    assert into == bytearray(b"\xee") * PAYLOAD_BYTES


async def test_a_write_that_hangs_does_not_read_the_host_later(hanging: Remote, hang: threading.Event) -> None:
    """Else a block of another prompt, which has the memory by then, would get a valid seal under this name."""
    payload = bytearray([1]) * PAYLOAD_BYTES
    hang.clear()
    assert not hanging.put(1, payload)
    payload[:] = bytes([9]) * PAYLOAD_BYTES
    hang.set()
    await eventually(lambda: hanging.counts["stores"] == 1, "the call ends, too late")
    hanging.clock.advance(HANG_PAUSE_S * 1000)
    assert hanging.load(1) == bytes([1]) * PAYLOAD_BYTES


async def test_after_a_call_that_hung_none_is_made_for_a_while(hanging: Remote, hang: threading.Event) -> None:
    hanging.put(1)
    hang.clear()
    assert hanging.load(1) is None
    hang.set()
    await eventually(lambda: hanging.counts["loads"] == 1, "the call ends, too late")
    assert hanging.load(1) is None
    assert not hanging.put(2)
    assert hanging.store.find_prefix([name(1)]).holds(name(1)) is False
    hanging.store.touch([(name(1), hanging.store.stamp_now())])
    assert (hanging.counts["calls_overdue"], hanging.counts["loads"]) == (1, 1)
    assert not hanging.file(2).exists()
    hanging.clock.advance(HANG_PAUSE_S * 1000)
    assert hanging.load(1) == bytes([1]) * PAYLOAD_BYTES
    assert await found(hanging, 1) == [1]


def test_a_lookup_without_an_answer_ends_in_time() -> None:
    clock = ManualClock(NOW_MS)
    lookup = PrefixLookup(clock)
    clock.advance(int(CALL_S * 1000) - 1)
    assert lookup.holds(name(1)) is None
    clock.advance(1)
    assert lookup.holds(name(1)) is False
    lookup.end([name(1)])
    assert lookup.holds(name(1)) is False


async def test_lookups_are_bounded(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()
    monkeypatch.setattr(SharedBlockStore, "holds", lambda *_: event.wait(20))
    lookups = [remote.store.find_prefix([name(1)]) for _ in range(LOOKUPS_MAX)]
    assert remote.store.find_prefix([name(1)]).holds(name(1)) is False
    assert remote.counts["loads_declined"] == 1
    event.set()
    await eventually(lambda: all(each.holds(name(1)) for each in lookups), "all end")
    await eventually(lambda: remote.store._looking == 0, "room again")


async def test_calls_are_bounded_with_those_that_were_left_behind(hanging: Remote) -> None:
    event = threading.Event()

    def call() -> None:
        with pytest.raises(FileSystemUnavailable):
            hanging.calls.make(event.wait)

    threads = [threading.Thread(target=call) for _ in range(CALLS_MAX)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hanging.clock.advance(HANG_PAUSE_S * 1000)
    with pytest.raises(FileSystemUnavailable, match="did not answer lately"):
        hanging.calls.make(lambda: 1)
    event.set()
    await eventually(lambda: hanging.calls._free._value == CALLS_MAX, "they end")
    assert hanging.calls.make(lambda: 1) == 1


def test_an_error_of_a_call_is_its_callers(remote: Remote) -> None:
    with pytest.raises(FileNotFoundError):
        remote.calls.make((remote.folder / "none").stat)
    assert not remote.calls.pausing


def test_stamps_are_saved_a_part_at_a_time(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    touch = SharedBlockStore.touch

    def counted(self: SharedBlockStore, stamps: Collection[tuple[bytes, int]]) -> None:
        made.append(len(stamps))
        touch(self, stamps)

    monkeypatch.setattr(SharedBlockStore, "touch", counted)
    remote.put(1)
    stamp = remote.store.stamp_now() + 10**9
    remote.store.touch([(name(number), stamp) for number in range(STAMPS_PER_CALL + 2)])
    assert made == [STAMPS_PER_CALL, 2]
    assert remote.file(1).stat().st_mtime_ns == stamp


def test_a_remote_folder_is_listed_each_time(tmp_path: Path) -> None:
    """Its time of change is another machine's."""
    whole = Shared(tmp_path / "kv", workers=1)
    whole.put(1)
    os.utime(whole.folder, (1, 1))
    described = shared(whole.folder)
    assert described.share is not None
    for remote in (False, True):
        pool = described._replace(share=described.share._replace(remote=remote))
        keeper = SharedPoolFolder(pool, whole.clock, 5 + remote)
        keeper.open()
        os.utime(whole.folder, (1, 1))
        assert keeper.listing() == Listing()
        assert (keeper.listing() is None) is not remote
        assert keeper.tier == ("remote" if remote else "disk")


def test_blocks_whose_removal_had_no_answer_are_named(hanging: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its time, or at all while calls pause: they are to be removed again. Those before are gone."""
    monkeypatch.setattr(remote_block_store, "REMOVED_PER_CALL", 2)
    numbers, names = range(6), [name(number) for number in range(6)]
    assert all(hanging.put(number) for number in numbers)
    free, remove = threading.Event(), SharedBlockStore.remove

    def late(self: SharedBlockStore, some: Sequence[bytes]) -> Sequence[bytes]:
        if names[2] in some:
            free.wait(20)
        return remove(self, some)

    monkeypatch.setattr(SharedBlockStore, "remove", late)
    assert hanging.store.remove(names) == names[2:]
    assert hanging.counts["calls_overdue"] == 1
    assert [hanging.file(number).exists() for number in numbers] == [False] * 2 + [True] * 4
    assert hanging.store.remove(names[2:]) == names[2:], "calls pause"
    free.set()
    hanging.clock.advance(HANG_PAUSE_S * 1000)
    assert hanging.store.remove(names[2:]) == []
    assert not any(hanging.file(number).exists() for number in numbers)
