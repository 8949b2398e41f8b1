"""A store of sealed files: within its bytes, tails before their prefixes, and nothing wrong is ever read."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from actors.kv_blocks.block_file import ALLOCATION_BYTES, FAILURES_MAX, PAUSE_S
from actors.kv_blocks.block_seal import BlockSeal, block_name, engine_digest
from actors.kv_blocks.block_store import (
    GOING,
    HEADROOM_SHARE,
    RETRIES_MAX,
    RETRY_S,
    BlockFolderLock,
    BlockStore,
)
from actors.kv_blocks.disk_counts import NAMES, DiskCounts, read_counts
from actors.kv_blocks.keeper_lease import LEASE_S, KeeperLease
from actors.kv_blocks.stuck_files import read_stuck
from core.clock import ManualClock
from core.errors import CallerError
from tests.actors.kv_blocks.test_pool_folder import shared_by

KEY = b"k" * 32
PAYLOAD_BYTES = 8192
FILE_BYTES = PAYLOAD_BYTES + ALLOCATION_BYTES
"""The header takes a part of its own."""


class Folder:
    """A store over a folder, and what was stored there."""

    def __init__(self, path: Path, blocks: int, facts: str = "weights", now_ms: int = 1_000_000) -> None:
        self.path = path
        self.clock = ManualClock(now_ms)
        self.counts = DiskCounts(path.with_suffix(".counts"))
        self.shared = shared_by(path)
        self.lease = KeeperLease(self.shared, self.clock)
        self.store = BlockStore(
            path, blocks * FILE_BYTES, BlockSeal(engine_digest(KEY, facts)), self.counts, self.shared, self.clock
        )

    def again(self, blocks: int, facts: str = "weights") -> Folder:
        """A new process over the same folder."""
        return Folder(self.path, blocks, facts, self.clock.now_ms)

    def touch(self, blocks: list[bytes], stamp: int) -> None:
        self.store.touch((name(block), stamp - depth) for depth, block in enumerate(blocks))

    def put(self, block: bytes, stamp: int | None = None) -> bool:
        self.clock.advance(1)
        return self.store.put(name(block), payload(block), self.store.stamp_now() if stamp is None else stamp)

    def load(self, block: bytes) -> bool:
        """True if it was loaded; then it is the block."""
        into = bytearray(PAYLOAD_BYTES)
        loaded = self.store.load(name(block), memoryview(into))
        assert not loaded or into == payload(block)
        return loaded

    def file(self, block: bytes) -> Path:
        return self.path / f"{name(block).hex()}.kv"

    def going(self) -> list[bytes]:
        """Blocks whose files go, of those that are numbers."""
        return [b"%d" % at for at in range(10) if self.file(b"%d" % at).with_suffix(GOING).exists()]

    def remove_going(self) -> None:
        """As the keeper does."""
        for file in self.path.glob(f"*{GOING}"):
            file.unlink()
        self.lease.count_removal()

    def bytes_on_disk(self) -> int:
        return sum(-(-file.stat().st_size // 4096) * 4096 for file in self.path.iterdir() if file.suffix != ".txt")


def name(block: bytes) -> bytes:
    return block_name(KEY, block)


def payload(block: bytes) -> memoryview:
    return memoryview(random.Random(block).randbytes(PAYLOAD_BYTES))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "blocks"
    path.mkdir()
    return Folder(path, 8)


def test_a_block_is_read_back_also_by_a_new_process(folder: Folder) -> None:
    assert not folder.store.holds(name(b"a"))
    assert folder.put(b"a")
    assert folder.store.holds(name(b"a"))
    assert folder.load(b"a")
    assert folder.again(8).load(b"a")
    assert stat.S_IMODE(folder.file(b"a").stat().st_mode) == 0o600
    assert [file.suffix for file in folder.path.iterdir()] == [".kv"]


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("short", lambda raw: raw[:-1]),
        ("short", lambda raw: b""),
        ("checksum", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        ("seal", lambda raw: b"NOPE" + raw[4:]),
    ],
    ids=("a byte less", "empty", "a bit", "no header"),
)
def test_a_changed_file_is_a_miss_and_goes(folder: Folder, reason: str, change: object) -> None:
    folder.put(b"a")
    assert callable(change)
    folder.file(b"a").write_bytes(change(folder.file(b"a").read_bytes()))
    assert not folder.load(b"a")
    assert folder.counts[f"refused_{reason}"] == 1
    assert not folder.file(b"a").exists()
    assert not folder.store.holds(name(b"a"))
    assert (folder.counts["blocks"], folder.counts["bytes"]) == (0, 0)


def test_another_blocks_file_is_a_stranger(folder: Folder) -> None:
    folder.put(b"a")
    folder.put(b"b")
    folder.file(b"b").rename(folder.file(b"a"))
    assert not folder.load(b"a")
    assert not folder.load(b"b")
    assert (folder.counts["refused_stranger"], folder.counts["refused_missing"]) == (1, 1)


def test_files_of_other_weights_are_refused(folder: Folder) -> None:
    folder.put(b"a")
    other = folder.again(8, "other weights")
    assert other.store.holds(name(b"a"))
    assert not other.load(b"a")
    assert other.counts["refused_seal"] == 1
    assert other.put(b"a")
    assert other.load(b"a")


def test_tails_go_before_their_prefixes(folder: Folder) -> None:
    """Also where the tail was written last, and by a new process."""
    stamp = folder.store.stamp_now()
    for depth in range(8):
        assert folder.put(b"%d" % depth, stamp - depth)
    assert folder.put(b"x")
    assert [depth for depth in range(8) if folder.store.holds(name(b"%d" % depth))] == list(range(7))
    next_one = folder.again(4)
    assert [depth for depth in range(8) if next_one.store.holds(name(b"%d" % depth))] == [0, 1, 2]
    assert next_one.store.holds(name(b"x"))
    assert next_one.counts["evictions"] == 4


def test_what_is_used_stays(folder: Folder) -> None:
    for block in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"):
        folder.put(block)
    folder.clock.advance(10)
    folder.touch([b"a", b"not here", b"b"], folder.store.stamp_now())
    folder.store.save_stamps()
    next_one = folder.again(8)
    for block, gone in ((b"i", b"c"), (b"j", b"d")):
        next_one.put(block)
        assert not next_one.store.holds(name(gone))
        assert next_one.store.holds(name(b"a"))
        assert next_one.store.holds(name(b"b"))


def test_a_scan_takes_away_what_was_not_finished_and_leaves_strangers_alone(folder: Folder) -> None:
    folder.put(b"a")
    (folder.path / f"{name(b'b').hex()}.new").write_bytes(b"half")
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / f"{name(b'c').hex()}.kv").mkdir()
    next_one = folder.again(8)
    assert next_one.counts["blocks"] == 1
    assert sorted(file.suffix for file in folder.path.iterdir()) == [".kv", ".kv", ".txt"]


def test_a_block_larger_than_the_store_is_not_stored(folder: Folder) -> None:
    small = folder.again(0)
    assert not small.put(b"a")
    assert small.counts["stores_dropped"] == 1


def test_a_disk_that_takes_nothing_is_left_alone_for_a_while(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error comes out; what is there is served, and after the pause writing is tried again."""
    folder.put(b"a")
    calls = 0

    def full(*_: object) -> int:
        nonlocal calls
        calls += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        for number in range(FAILURES_MAX + 5):
            assert not folder.put(b"%d" % number)
        assert calls == FAILURES_MAX
        assert (folder.counts["write_failures"], folder.counts["stores_dropped"]) == (FAILURES_MAX, 5)
        assert folder.load(b"a")
        folder.clock.advance(PAUSE_S * 1000)
        assert not folder.put(b"b")
        assert calls == FAILURES_MAX + 1
    assert folder.put(b"b")
    assert folder.counts["bytes"] == folder.bytes_on_disk() == 2 * FILE_BYTES


def test_a_folder_that_may_not_be_written(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that cannot be removed goes on counting as used, so that the bound holds."""
    for number in range(8):
        folder.put(b"%d" % number)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(Path, "unlink", denied)
    assert not folder.put(b"x")
    assert folder.bytes_on_disk() == folder.store.used_bytes == 8 * FILE_BYTES


def test_an_unreadable_file_is_a_miss(folder: Folder) -> None:
    folder.put(b"a")
    folder.file(b"a").unlink()
    folder.file(b"a").symlink_to("/etc/hostname")
    assert not folder.load(b"a")
    assert folder.counts["refused_unreadable"] == 1


@pytest.fixture
def kept(folder: Folder) -> Folder:
    """A full store whose keeper has its lease: eight blocks, of which the oldest is `0`."""
    for number in range(8):
        folder.put(b"%d" % number)
    folder.lease.renew()
    return folder


def test_with_a_keeper_a_file_goes_before_it_is_removed(kept: Folder) -> None:
    """It is read meanwhile. A new block is not written, as the bytes hold, until the keeper has removed files."""
    for _ in range(2):
        assert not kept.put(b"x")
        assert kept.going() == [b"0", b"1"], "room for the block and the headroom, and no more"
        assert kept.load(b"0")
        assert kept.store.holds(name(b"0"))
        assert kept.bytes_on_disk() == kept.store.used_bytes == kept.counts["bytes"] == 8 * FILE_BYTES
    kept.remove_going()
    assert kept.put(b"x")
    assert not kept.store.holds(name(b"0"))
    assert (kept.counts["evictions"], kept.counts["evictions_unannounced"], kept.counts["stores_dropped"]) == (2, 0, 2)
    assert kept.bytes_on_disk() == kept.store.used_bytes == 7 * FILE_BYTES


def test_room_is_left_while_files_go(tmp_path: Path) -> None:
    """With a keeper that is not slower than the headroom, every block is written."""
    path = tmp_path / "blocks"
    path.mkdir()
    folder = Folder(path, 2 * HEADROOM_SHARE)
    folder.lease.renew()
    for number in range(5 * HEADROOM_SHARE):
        assert folder.put(b"%d" % number)
        assert folder.bytes_on_disk() == folder.store.used_bytes <= 2 * HEADROOM_SHARE * FILE_BYTES
        if number % 2:
            folder.remove_going()
    assert folder.counts["stores_dropped"] == 0
    assert folder.counts["blocks"] >= 2 * HEADROOM_SHARE - 2


def test_a_block_that_is_used_again_stays(kept: Folder) -> None:
    """Also if it is written again; one whose file is gone does not, and is written."""
    assert not kept.put(b"x")
    kept.touch([b"0", b"1"], kept.store.stamp_now() + 1)
    assert kept.going() == []
    kept.remove_going()
    assert kept.load(b"0")
    assert not kept.put(b"x")
    assert kept.going() == [b"2", b"3"]
    assert kept.put(b"2")
    assert (kept.going(), kept.counts["stores"]) == ([b"3"], 8)
    assert not kept.put(b"x")
    assert kept.going() == [b"2", b"3"], "written again, it is no newer"
    kept.remove_going()
    kept.touch([b"2"], kept.store.stamp_now())
    assert not kept.store.holds(name(b"2"))
    assert kept.put(b"2")
    assert kept.load(b"2")


def test_a_block_that_the_keeper_took_is_a_miss_and_not_refused(kept: Folder) -> None:
    kept.put(b"x")
    kept.remove_going()
    assert kept.store.holds(name(b"0")), "nothing was written since"
    assert not kept.load(b"0")
    assert not kept.store.holds(name(b"0"))
    assert (kept.counts["evictions"], kept.counts["refused_missing"]) == (1, 0)
    assert kept.counts["bytes"] == 7 * FILE_BYTES


@pytest.mark.parametrize(("ends", "unannounced"), [("left", 0), ("away", 1)])
def test_without_a_keeper_files_are_removed_at_once(kept: Folder, ends: str, unannounced: int) -> None:
    """One that left announces nothing; of one that is away longer than its lease, the index still has the block."""
    if ends == "left":
        kept.lease.end()
    else:
        kept.clock.advance(round(LEASE_S * 1000))
    assert kept.put(b"x")
    assert kept.going() == []
    assert (kept.counts["evictions"], kept.counts["evictions_unannounced"]) == (1, unannounced)


def test_a_keeper_that_comes_between_is_waited_for(kept: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is looked at after the file has its other name, which the keeper lists."""
    kept.lease.end()
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target.suffix == GOING:
            kept.lease.renew()
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert not kept.put(b"x")
    assert kept.going() == [b"0"]
    assert kept.load(b"0")


def test_a_next_life_removes_what_goes(kept: Folder) -> None:
    """No keeper announced it since."""
    kept.put(b"x")
    next_one = kept.again(8)
    assert kept.going() == []
    assert next_one.counts["blocks"] == 6
    assert next_one.counts["bytes"] == next_one.bytes_on_disk()


def test_a_refused_file_that_cannot_be_removed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its block is a miss, its bytes count, the keeper knows, and its removal is tried so many times. A later one
    starts anew, and a block that is written in its place is no more stuck."""
    for block in (b"a", b"b"):
        folder.put(block)
        folder.file(block).write_bytes(b"x" * FILE_BYTES)
    calls = 0

    def denied(self: Path, **_: object) -> None:
        nonlocal calls
        calls += self.suffix == ".kv"
        raise PermissionError(13, "denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", denied)
        assert not folder.load(b"a")
        assert not folder.store.holds(name(b"a"))
        assert read_stuck(folder.shared) == {name(b"a")}
        for _ in range(RETRIES_MAX + 5):
            folder.clock.advance(RETRY_S * 1000)
            assert folder.put(b"c")
        assert calls == 1 + RETRIES_MAX
        assert folder.store.used_bytes == folder.bytes_on_disk() == 3 * FILE_BYTES
        assert not folder.load(b"b")
        assert read_stuck(folder.shared) == {name(b"a"), name(b"b")}
        assert folder.counts["stuck"] == 2
    assert folder.put(b"a")
    assert read_stuck(folder.shared) == {name(b"b")}
    folder.clock.advance(RETRY_S * 1000)
    assert folder.put(b"d")
    assert read_stuck(folder.shared) == set()
    assert folder.load(b"a")
    assert folder.counts["bytes"] == folder.bytes_on_disk() == 3 * FILE_BYTES


class _Crash(BaseException):
    """The process is gone here."""


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that share beginnings are stored, loaded and evicted; the process crashes in a write, and files are
    damaged. The bound holds at each moment, of each prompt a beginning is left, and what is loaded is right."""
    fresh = random.Random(seed)
    path = tmp_path / "blocks"
    path.mkdir()
    bound = fresh.randrange(6, 20)
    folder = Folder(path, bound)
    prompts = [[b"%d" % trunk, *(b"%d.%d.%d" % (trunk, leaf, depth) for depth in range(5))]
               for trunk in range(4) for leaf in range(2)]  # fmt: skip
    damaged = set[bytes]()
    loaded = 0
    for _ in range(120):
        prompt = fresh.choice(prompts)
        folder.clock.advance(1)
        act = fresh.random()
        if act < 0.6:
            stamp = folder.store.stamp_now()
            folder.touch(prompt, stamp)
            for depth, block in enumerate(prompt[: fresh.randrange(1, len(prompt) + 1)]):
                folder.store.put(name(block), payload(block), stamp - depth)
                assert folder.bytes_on_disk() <= bound * FILE_BYTES
        elif act < 0.85:
            for block in prompt:
                if not folder.store.holds(name(block)) or not folder.load(block):
                    break
                loaded += 1
        elif act < 0.93:
            with monkeypatch.context() as patched, pytest.raises(_Crash):
                _write_then_crash(patched, fresh)
                for number in range(100):
                    folder.put(b"crash %d %d" % (number, fresh.randrange(1 << 30)))
            folder = folder.again(bound)
            assert not list(path.glob("*.new"))
        elif files := sorted(path.glob("*.kv")):
            file = fresh.choice(files)
            raw = bytearray(file.read_bytes())
            raw[fresh.randrange(len(raw))] ^= 1 << fresh.randrange(8)
            stamp = file.stat().st_mtime_ns
            file.write_bytes(raw)
            os.utime(file, ns=(stamp, stamp))
            damaged.add(bytes.fromhex(file.stem))
        assert folder.bytes_on_disk() == folder.store.used_bytes == folder.counts["bytes"] <= bound * FILE_BYTES
        assert folder.counts["blocks"] == len(list(path.glob("*.kv")))
        if not damaged:
            for each in prompts:
                held = [folder.store.holds(name(block)) for block in each]
                assert held == sorted(held, reverse=True), "a beginning, and nothing behind it"
    assert loaded


def _write_then_crash(patched: pytest.MonkeyPatch, fresh: random.Random) -> None:
    real, until = os.writev, fresh.randrange(3)

    def writev(file: int, parts: list[bytes]) -> int:
        nonlocal until
        until -= 1
        if until < 0:
            os.write(file, parts[0])
            raise _Crash
        return real(file, parts)

    patched.setattr(os, "writev", writev)


def test_counts_are_seen_by_another_process(tmp_path: Path) -> None:
    counts = DiskCounts(tmp_path / "counts")
    counts.add(loads=2, bytes=100)
    counts.add(bytes=-40)
    assert read_counts(tmp_path / "counts") == dict.fromkeys(NAMES, 0) | {"loads": 2, "bytes": 60}
    counts.close()
    assert read_counts(tmp_path / "none") == {}
    (tmp_path / "half").write_bytes(b"12")
    assert read_counts(tmp_path / "half") == {}


def test_counting_without_a_file_ends_nothing(tmp_path: Path) -> None:
    counts = DiskCounts(tmp_path / "no folder" / "counts")
    counts.add(loads=1)
    counts.close()
    assert counts["loads"] == 1


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "decode-0"
    lock = BlockFolderLock(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(CallerError, match="decode-0 is in use by another worker of that name"):
        BlockFolderLock(folder)
    lock.close()
    BlockFolderLock(folder).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(CallerError, match=r"the disk tier cannot use the folder .*: Not a directory"):
        BlockFolderLock(tmp_path / "file" / "decode-0")


def test_old_stamps_are_forgotten(folder: Folder) -> None:
    """The heap of stamps is bounded, however often blocks are used."""
    folder.put(b"a")
    for _ in range(3000):
        folder.clock.advance(1)
        folder.touch([b"a"], folder.store.stamp_now())
    assert len(folder.store._oldest) <= 1100
