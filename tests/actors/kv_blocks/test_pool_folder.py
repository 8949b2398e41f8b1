"""A pool's folder: its id, its catalogue, and all that can be wrong in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from actors.kv_blocks import pool_folder, stuck_files
from actors.kv_blocks.block_seal import BlockSeal, block_name, engine_digest
from actors.kv_blocks.block_store import GOING
from actors.kv_blocks.catalog_records import RECORD_BYTES, CatalogEntry, CatalogRecords
from actors.kv_blocks.keeper_lease import LEASE_S, KeeperLease
from actors.kv_blocks.pool_folder import (
    CATALOG_FILE,
    SETTLED_NS,
    SLACK,
    Listing,
    PoolDescription,
    PoolFolder,
)
from actors.kv_blocks.stuck_files import StuckFiles
from core.clock import ManualClock

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
KIND, OTHER_KIND = engine_digest(KEY, "weights"), engine_digest(KEY, "other weights")
NOW_MS = 10**9


def described(folder: Path, key: bytes = KEY, kind: bytes = KIND) -> PoolDescription:
    return PoolDescription(folder, key, kind, 8, 32, bytes(4), shared_by(folder))


def shared_by(folder: Path) -> Path:
    """The folder beside it in which its engine and its keeper have small files."""
    shared = folder.with_name(f"{folder.name} of the engine")
    shared.mkdir(exist_ok=True)
    return shared


def opened(folder: Path, **more: bytes) -> PoolFolder:
    return PoolFolder(described(folder, **more), ManualClock(NOW_MS))


def name(number: int, key: bytes = KEY) -> bytes:
    return block_name(key, number.to_bytes(32, "big") + bytes(4))


def put(folder: Path, number: int, kind: bytes = KIND) -> bytes:
    """A block's file; returns its name."""
    payload = memoryview(bytes([number]) * 5000)
    path = folder / f"{name(number).hex()}.kv"
    path.write_bytes(BlockSeal(kind).header(name(number), payload) + payload)
    return name(number)


def entries(*numbers: int) -> dict[bytes, CatalogEntry]:
    """A chain of blocks in files of these numbers."""
    return {name(number): CatalogEntry(1000 + number, None if not number else 999 + number) for number in numbers}


def kept(folder: Path, *numbers: int) -> PoolFolder:
    """These files lie there, and are in the catalogue."""
    it = opened(folder)
    it.open()
    for number in numbers:
        put(folder, number)
    assert it.keep(entries(*numbers)) == {name(number) for number in numbers}
    return it


def catalogue(folder: Path) -> bytes:
    return (folder / CATALOG_FILE).read_bytes()


def test_a_pool_keeps_its_id(tmp_path: Path) -> None:
    found, _ = opened(tmp_path).open()
    assert opened(tmp_path).open()[0] == found
    (tmp_path / "pool").write_bytes(b"\xff no id")
    again, _ = opened(tmp_path).open()
    assert again != found
    assert opened(tmp_path).open()[0] == again
    assert {path.name for path in tmp_path.iterdir()} == {"pool"}


def test_a_copy_of_a_folder_is_another_pool(tmp_path: Path) -> None:
    """A folder with another name is the same one."""
    (tmp_path / "a").mkdir()
    kept(tmp_path / "a", 0, 1)
    found, _ = opened(tmp_path / "a").open()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied, known = opened(tmp_path / "b").open()
    assert (copied != found, known) == (True, entries(0, 1))
    (tmp_path / "a").rename(tmp_path / "c")
    assert opened(tmp_path / "c").open()[0] == found


def test_an_id_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    """The folder cannot be opened then."""
    found, _ = opened(tmp_path).open()
    (tmp_path / "pool").rename(tmp_path / "kept")
    (tmp_path / "pool").mkdir()
    with pytest.raises(OSError, match="pool"):
        opened(tmp_path).open()
    (tmp_path / "pool").rmdir()
    (tmp_path / "kept").rename(tmp_path / "pool")
    assert opened(tmp_path).open()[0] == found


def test_a_catalogue_that_cannot_be_written_anew_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are used no more stay in front of those that come."""
    kept(tmp_path, 0, 1, 2, 3)
    (tmp_path / f"{name(0).hex()}.kv").unlink()
    put(tmp_path, 9)
    again = opened(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(pool_folder, "replace_file", no_room)
        assert again.open()[1] == entries(1, 2, 3)
    assert again.keep(entries(9)) == {name(9)}
    assert opened(tmp_path).open()[1] == entries(1, 2, 3, 9)


def no_room(*_: object) -> None:
    raise OSError("no room")


def test_files_are_named_as_the_engine_names_them(tmp_path: Path) -> None:
    """Also those of which the hash begins with zeros."""
    assert opened(tmp_path).name_of(5) == name(5)
    assert opened(tmp_path).name_of(2**256 - 1) == block_name(KEY, b"\xff" * 32 + bytes(4))


def test_the_next_keeper_has_the_entries(tmp_path: Path) -> None:
    """Of the files that lie there still, and no others."""
    kept(tmp_path, 0, 1, 2, 3)
    (tmp_path / f"{name(2).hex()}.kv").unlink()
    put(tmp_path, 9)
    again = opened(tmp_path)
    assert again.open()[1] == entries(0, 1, 3)
    assert len(catalogue(tmp_path)) == 3 * RECORD_BYTES
    assert again.keep(entries(9)) == {name(9)}
    assert opened(tmp_path).open()[1] == entries(0, 1, 3, 9)
    assert (tmp_path / CATALOG_FILE).stat().st_mode & 0o777 == 0o600


def test_there_are_no_hashes_in_the_clear(tmp_path: Path) -> None:
    kept(tmp_path, 0, 1, 2)
    raw = catalogue(tmp_path)
    assert not any(block.to_bytes(8, order) in raw for block in (1000, 1001, 1002) for order in ("little", "big"))


@pytest.mark.parametrize("more", [{"key": OTHER_KEY}, {"kind": OTHER_KIND}], ids=["another key", "other weights"])
def test_a_stranger_reads_no_link(tmp_path: Path, more: dict[str, bytes]) -> None:
    """And leaves none behind, so that no later keeper takes a file that it wrote for one of before."""
    kept(tmp_path, 0, 1, 2)
    assert opened(tmp_path, **more).open()[1] == {}
    assert opened(tmp_path).open()[1] == {}


@pytest.mark.parametrize("cut", range(1, RECORD_BYTES))
def test_a_torn_record_is_passed_over(tmp_path: Path, cut: int) -> None:
    """What follows is whole again."""
    kept(tmp_path, 0, 1, 2)
    (tmp_path / CATALOG_FILE).write_bytes(catalogue(tmp_path)[:-cut])
    again = opened(tmp_path)
    assert again.open()[1] == entries(0, 1)
    again.keep(entries(2))
    assert opened(tmp_path).open()[1] == entries(0, 1, 2)


@pytest.mark.parametrize("at", range(RECORD_BYTES))
def test_a_flipped_bit_is_passed_over(tmp_path: Path, at: int) -> None:
    kept(tmp_path, 0, 1, 2)
    raw = bytearray(catalogue(tmp_path))
    raw[RECORD_BYTES + at] ^= 4
    (tmp_path / CATALOG_FILE).write_bytes(raw)
    assert opened(tmp_path).open()[1] == entries(0, 2)


def test_a_forged_record_is_passed_over(tmp_path: Path) -> None:
    """One block's content under another's name, and one by another key."""
    kept(tmp_path, 0, 1, 2)
    raw = catalogue(tmp_path)
    swapped = raw[:16] + raw[RECORD_BYTES + 16 :][: RECORD_BYTES - 16] + raw[RECORD_BYTES:]
    (tmp_path / CATALOG_FILE).write_bytes(swapped)
    assert opened(tmp_path).open()[1] == entries(1, 2)
    forged = CatalogRecords(OTHER_KEY, KIND).encode({name(0): CatalogEntry(1000, None)})
    (tmp_path / CATALOG_FILE).write_bytes(forged + raw[RECORD_BYTES:])
    assert opened(tmp_path).open()[1] == entries(1, 2)


def test_what_is_no_block_of_this_kind_is_not_kept(tmp_path: Path) -> None:
    """Files of other weights, under another block's name, cut short, empty, an entry, or gone."""
    it = opened(tmp_path)
    it.open()
    put(tmp_path, 0)
    put(tmp_path, 1, OTHER_KIND)
    (tmp_path / f"{name(2).hex()}.kv").write_bytes((tmp_path / f"{name(0).hex()}.kv").read_bytes())
    put(tmp_path, 3)
    os.truncate(tmp_path / f"{name(3).hex()}.kv", 4000)
    (tmp_path / f"{name(4).hex()}.kv").touch()
    (tmp_path / f"{name(5).hex()}.kv").symlink_to(tmp_path / f"{name(0).hex()}.kv")
    assert it.keep(entries(*range(7))) == {name(0)}
    assert opened(tmp_path).open()[1] == entries(0)


def test_the_folder_is_listed_while_it_changes(tmp_path: Path) -> None:
    """Names of blocks alone; a folder that has just changed may change again unseen."""
    clock = ManualClock(NOW_MS)
    it = PoolFolder(described(tmp_path), clock)
    put(tmp_path, 0)
    for other in (f"{name(1).hex()}.new", "lock", f"{name(2).hex()}", f"x{name(2).hex()}.kv"):
        (tmp_path / other).touch()
    for age_ns, listed in ((SETTLED_NS, True), (SETTLED_NS + 10**6, True), (SETTLED_NS + 10**6, False)):
        at_ns = clock.wall_ms() * 10**6 - age_ns
        os.utime(tmp_path, ns=(at_ns, at_ns))
        assert it.listing() == (Listing(frozenset({name(0)})) if listed else None)
    os.utime(tmp_path, ns=(at_ns := (clock.wall_ms() - 1) * 10**6, at_ns))
    for _ in range(2):
        assert it.listing() is not None, "a change within the same step of the folder's time is not seen otherwise"
    put(tmp_path, 3)
    assert it.listing() == Listing(frozenset({name(0), name(3)}))


def test_the_catalogue_does_not_grow_for_ever(tmp_path: Path) -> None:
    it = kept(tmp_path, 0, 1)
    assert not it.is_wasteful(2)
    while not it.is_wasteful(2):
        it.keep(entries(0, 1))
    assert SLACK + 4 < len(catalogue(tmp_path)) // RECORD_BYTES <= SLACK + 6
    it.rewrite(entries(0, 1))
    assert not it.is_wasteful(0)
    assert len(catalogue(tmp_path)) == 2 * RECORD_BYTES
    it.keep(entries(1))
    assert opened(tmp_path).open()[1] == entries(0, 1)


def test_a_full_disk_keeps_the_catalogue_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be appended is none of it; it can be tried again."""
    it = kept(tmp_path, 0)
    put(tmp_path, 1)
    whole = os.pwrite

    def cut(file: int, data: bytes, at: int) -> int:
        return whole(file, data[:20], at)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", cut)
        with pytest.raises(OSError, match="only a part"):
            it.keep(entries(1))
        full.setattr(pool_folder, "replace_file", lambda *_: (_ for _ in ()).throw(OSError("full")))
        it.rewrite({})
        assert opened(tmp_path).open()[1] == entries(0)
    assert it.keep(entries(1)) == {name(1)}
    assert opened(tmp_path).open()[1] == entries(0, 1)


def going(folder: Path, number: int) -> Path:
    """The block's file, which goes."""
    file = folder / f"{put(folder, number).hex()}.kv"
    return file.rename(file.with_suffix(GOING))


def test_a_file_that_goes_is_listed_apart(tmp_path: Path) -> None:
    """One that was renamed during the listing is seen under both names, and goes."""
    it = opened(tmp_path)
    put(tmp_path, 1)
    going(tmp_path, 2)
    going(tmp_path, 3)
    put(tmp_path, 3)
    assert it.listing() == Listing(frozenset({name(1)}), frozenset({name(2), name(3)}))


def test_files_that_go_are_removed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stays after all, or that is gone, is no failure; one that cannot be removed is."""
    it = opened(tmp_path)
    it.lease.renew()
    put(tmp_path, 1)
    file = going(tmp_path, 2)
    assert it.remove_going([name(1), name(2), name(3)]) == 0
    assert not file.exists()
    assert it.lease.removals() == 1, "the engine sees it"
    assert [each.stem for each in tmp_path.glob("*.kv")] == [name(1).hex()]
    going(tmp_path, 4)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(Path, "unlink", denied)
    assert it.remove_going([name(4)]) == 1


def test_the_lease_is_taken_before_the_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the engine could remove at once what is announced a moment later. A keeper that fails has none."""
    kept(tmp_path, 1)
    it, seen = opened(tmp_path), list[int | None]()
    real = PoolFolder._list

    def watched(self: PoolFolder) -> Listing:
        seen.append(self.lease.left_ns())
        return real(self)

    monkeypatch.setattr(PoolFolder, "_list", watched)
    it.lease.end()
    assert it.lease.left_ns() is None
    it.open()
    assert seen == [LEASE_S * 1e9]

    def fails(_: PoolFolder) -> Listing:
        raise OSError("no such disk")

    monkeypatch.setattr(PoolFolder, "_list", fails)
    with pytest.raises(OSError, match="no such disk"):
        it.open()
    assert it.lease.left_ns() is None


def test_a_lease_ends(tmp_path: Path) -> None:
    """Of two clocks of one machine; a longer one holds so much longer."""
    clock = ManualClock(NOW_MS)
    keeper, engine = KeeperLease(tmp_path, clock), KeeperLease(tmp_path, clock)
    assert engine.left_ns() is None
    keeper.renew(2.5)
    assert engine.left_ns() == (LEASE_S + 2.5) * 1e9
    clock.advance(round(LEASE_S * 1000) + 2600)
    assert engine.left_ns() == -0.1e9
    keeper.renew()
    assert (engine.left_ns(), engine.removals()) == (LEASE_S * 1e9, 0)
    for number in (1, 2):
        keeper.count_removal()
        assert (engine.left_ns(), engine.removals()) == (LEASE_S * 1e9, number)
    keeper.renew()
    assert engine.removals() == 2
    keeper.end()
    keeper.end()
    assert engine.left_ns() is None


def test_a_lease_that_cannot_be_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the engine would wait for a keeper that never comes."""
    lease = KeeperLease(tmp_path, ManualClock(NOW_MS))

    def fails(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "no such file") if not list(tmp_path.iterdir()) else OSError(5, "no such disk")

    monkeypatch.setattr(os, "utime", fails)
    with pytest.raises(OSError, match="no such disk"):
        lease.renew()
    assert lease.left_ns() is None


def test_stuck_files_are_named_to_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a bound, beyond which all count as stuck."""
    monkeypatch.setattr(stuck_files, "STUCK_MAX", 2)
    stuck, it = StuckFiles(shared_by(tmp_path)), opened(tmp_path)
    assert it.stuck() == set()
    stuck.add(name(1), 10)
    stuck.add(name(2), 20)
    assert it.stuck() == {name(1), name(2)}
    assert (stuck.pop(name(1)), stuck.pop(name(1))) == (10, 0)
    assert it.stuck() == {name(2)}
    stuck.add(name(3), 30)
    stuck.add(name(4), 40)
    assert it.stuck() is None
    assert stuck.names() == [name(2), name(3)]
