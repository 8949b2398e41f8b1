"""Exports made to harm their reader: pieces that unfold to far more than they hold, and control characters in names."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import zstandard

from api.debug.timeline.timeline_scan import BlockReader
from core.errors import Corrupt
from core.ids import Epoch, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING
from streams.archive.archive_format import ArchiveBlock, Row
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.archive.unpacking import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    FILE_BYTES_FREE,
    SNAPSHOT_BYTES_FREE,
    UNPACK_RATIO_MAX,
)
from tests.e2e.deployment import CONTRAIL
from tests.projections.facts import joined
from tests.replay.staged import ASKED, KEY, KV, A, Stage

MEMORY_MAX = 1500 * 2**20
MIB = 2**20


def tiny_rows(count: int) -> bytes:
    """A msgpack list of so many messages without content: 6 bytes each, which become some 90 as objects."""
    return b"\xdd" + count.to_bytes(4) + b"\x94\x01\x00\xa0\xc4\x00" * count


class Bomb:
    """An export whose contents describe pieces of our choice, with right checksums."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", 1)
        self.writer.open(ROUTING, Epoch(1), 1, 1)
        self._seq = 0

    def block(self, unpacked: bytes, messages: int) -> None:
        piece = self.writer._put(zstandard.ZstdCompressor(level=3).compress(unpacked))
        first, self._seq = self._seq + 1, self._seq + messages
        self.writer._blocks.append(ArchiveBlock(ROUTING, first, self._seq, 1, 1, messages, piece))
        self.writer.reached(ROUTING, self._seq)

    def snapshot(self, size: int) -> Manifest:
        fields = {"id": "s", "fold_version": 1, "made_ms": 1, "by": "r", "fence": 1, "cursor": {}, "digest": "0" * 16}
        more = {"incomplete": 0, "chunks": 1, "first_seq": 1, "size_bytes": size, "checksum": "0" * 32}
        manifest = msgspec.convert(fields | more, Manifest)
        self.writer.add_snapshot(manifest, bytes(size))
        return manifest

    def finish(self) -> Path:
        self.writer.finish(self.writer.contents(0, 1))
        return self.path


def verify(path: Path) -> subprocess.CompletedProcess[str]:
    """`contrail replay verify` of the file, in a process that may have MEMORY_MAX."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))

    key = path.with_name("key")
    key.write_text(KEY.secret.hex())
    words = ["replay", "verify", "--log", str(path), "--key-file", str(key), "--jobs", "1"]
    return subprocess.run(
        [*CONTRAIL, *words], capture_output=True, text=True, timeout=120, check=False, preexec_fn=bounded
    )


def test_a_block_of_countless_messages_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """240 MB of messages without content, in 24 kB of file, would take 3.6 GB as objects."""
    bomb = Bomb(tmp_path / "log")
    bomb.block(tiny_rows(40_000_000), 40_000_000)
    path = bomb.finish()
    assert path.stat().st_size < 60_000
    found = verify(path)
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    assert "messages" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_block_holds_as_many_messages_as_its_contents_say(tmp_path: Path) -> None:
    """A small number in the contents does not let a long list in."""
    bomb = Bomb(tmp_path / "log")
    bomb.block(tiny_rows(11_000_000), 5)
    found = verify(bomb.finish())
    assert (found.returncode, "Traceback" in found.stderr) == (2, False), found.stderr
    assert "holds other messages than the contents say" in found.stderr


@pytest.mark.parametrize(("messages", "stands"), [(BLOCK_MESSAGES_MAX, True), (BLOCK_MESSAGES_MAX + 1, False)])
def test_messages_of_a_block_have_a_bound(tmp_path: Path, messages: int, stands: bool) -> None:
    """The bound itself is read: no block of ours has more."""
    bomb = Bomb(tmp_path / "log")
    rows = [Row(StreamSeq(seq), 0, "", b"") for seq in range(1, messages + 1)]
    bomb.block(msgspec.msgpack.encode(rows), messages)
    path = bomb.finish()
    readings: Sequence[Callable[[], object]] = (lambda: read_all(path), lambda: scan_all(path))
    for reading in readings:
        if stands:
            assert reading() == messages
        else:
            with pytest.raises(Corrupt, match=f"at most {BLOCK_MESSAGES_MAX}"):
                reading()


def read_all(path: Path) -> int:
    with ArchiveReader.open(path) as archive:
        return sum(1 for _ in archive.read(ROUTING))


def scan_all(path: Path) -> int:
    with ArchiveReader.open(path) as archive, BlockReader(path) as reader:
        return sum(len(reader.of(block)) for block in archive.contents.blocks)


@pytest.mark.parametrize("over", [0, 1])
def test_bytes_of_a_block_have_a_bound(tmp_path: Path, over: int) -> None:
    """A message as long as the log takes stands in it."""
    bomb = Bomb(tmp_path / "log")
    frame = len(msgspec.msgpack.encode([Row(StreamSeq(1), 0, "", bytes(MIB))])) - MIB
    bomb.block(msgspec.msgpack.encode([Row(StreamSeq(1), 0, "", bytes(BLOCK_BYTES_MAX - frame + over))]), 1)
    path = bomb.finish()
    if not over:
        assert read_all(path) == scan_all(path) == 1
        return
    for reading in (read_all, scan_all):
        with pytest.raises(Corrupt, match=f"unpacks to {BLOCK_BYTES_MAX + 1} bytes"):
            reading(path)


def test_a_file_unfolds_to_so_much_and_no_more(tmp_path: Path) -> None:
    """Each block is within its bound, and all together are not: the reading ends with a sentence."""
    bomb = Bomb(tmp_path / "log")
    for seq in range(1, 9):
        bomb.block(msgspec.msgpack.encode([Row(StreamSeq(seq), 0, "", bytes(60 * MIB))]), 1)
    path = bomb.finish()
    assert path.stat().st_size * UNPACK_RATIO_MAX < FILE_BYTES_FREE
    with ArchiveReader.open(path) as archive:
        read = 0
        with pytest.raises(Corrupt, match="unfolds to more than"):
            for record in archive.read(ROUTING):
                read += len(record.payload)
        assert read <= FILE_BYTES_FREE
    with ArchiveReader.open(path) as archive:  # the same block again is no more of the file
        for _ in range(100):
            assert archive.at(ROUTING, 1) is not None
            archive._unpacked.clear()
    assert verify(path).returncode == 2


@pytest.mark.parametrize("over", [0, 1])
def test_a_snapshot_unfolds_to_so_much_and_no_more(tmp_path: Path, over: int) -> None:
    """Blocks are hashes, which hardly shrink: a piece that grows a thousandfold is none of ours."""
    bomb = Bomb(tmp_path / "log")
    manifest = bomb.snapshot(SNAPSHOT_BYTES_FREE + over)
    with ArchiveReader.open(bomb.finish()) as archive:
        if over:
            with pytest.raises(Corrupt, match=f"unpacks to {SNAPSHOT_BYTES_FREE + 1} bytes"):
                archive.snapshot(manifest)
        else:
            assert len(archive.snapshot(manifest)) == SNAPSHOT_BYTES_FREE


ATTACK = "decode\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066\r\nall is well"
"""Sets the window's title, clears the screen, turns text around, and begins a line of its own."""
CODES = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
RAW = {chr(code) for code in CODES} - {"\n"}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose worker and replica have such a name."""
    stage = Stage()
    stage.say(KV, A, joined(name=ATTACK))
    stage.replica(name=ATTACK)
    stage.route("one", ASKED)
    path = stage.archived(tmp_path_factory.mktemp("named") / "log")
    path.with_name("key").write_text(KEY.secret.hex())
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "verify"),
        ("replay", "at", "one"),
        ("explain", "one"),
        ("replay", "what-if", "--policy", "random"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_control_character_reaches_the_terminal(named: Path, words: tuple[str, ...], as_json: bool) -> None:
    """Of either output: names are shown with their escapes, in the lines where they belong."""
    more = ("--json",) if as_json else ()
    command = [*CONTRAIL, *words, "--log", str(named), "--key-file", str(named.with_name("key")), *more]
    found = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert found.returncode in {0, 1}, found.stderr.decode()
    output = found.stdout.decode() + found.stderr.decode()
    assert not RAW & set(output)
    assert not any(line.startswith("all is well") for line in output.splitlines())
    if as_json:
        json.loads(found.stdout)


def test_an_error_shows_escapes(tmp_path: Path) -> None:
    """Also of a file's name, and of what a broken file says of itself."""
    path = tmp_path / "\x1b[2Jlog\x9b"
    path.write_bytes(b"none")
    found = subprocess.run([*CONTRAIL, "replay", "verify", "--log", str(path)], capture_output=True, check=False)
    assert found.returncode == 2
    assert not RAW & set(found.stderr.decode())
    assert "\\x1b[2Jlog\\x9b" in found.stderr.decode()
