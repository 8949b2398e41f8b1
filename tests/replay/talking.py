"""Long talks for tests, as arrivals of a simulation: each turn repeats the prompt of the one before it."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import xxhash

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.codec import digest
from core.ids import Epoch, RequestId, StreamSeq
from core.prompt import hashes_to_bytes
from core.settings import RoutingSettings
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, encode
from replay.recording.moment import AtSequence
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival
from streams.archive.archive_writer import ArchiveWriter

BLOCK_SIZE = 16
ENGINE = SimulatedSettings(block_size=BLOCK_SIZE, capacity_blocks=4000, max_seqs=16, eos_every=0)


def long_talks(talks: int, turns: int, blocks: int = 60, news: int = 9, every_us: int = 15_000) -> list[Arrival]:
    """So many talks at once; all begin with the same blocks, every fifth one goes on with the prompt of another, and
    each turn is asked by two at once now and then."""
    found = list[Arrival]()
    for turn in range(turns):
        for talk in range(talks):
            whose = talk - talk % 5 if turn < 2 else talk
            names = [f"system/{at}" for at in range(blocks // 2)]
            names += [f"{talk if at >= 40 else whose}/{at}" for at in range(blocks + news * turn)]
            hashes = hashes_to_bytes(accumulate(map(str.encode, names), _behind, initial=0))[8:]
            at_us = (turn * talks + talk) * every_us
            for twin in range(2 if (turn + talk) % 7 == 0 else 1):
                name = RequestId(f"talk-{talk}-{turn}-{twin}")
                found.append(Arrival(name, at_us + twin, len(names) * BLOCK_SIZE + talk % 16, hashes, 4 + talk % 5))
    return found


def _behind(before: int, name: bytes) -> int:
    """A hash that covers all blocks before its own."""
    return xxhash.xxh3_64_intdigest(name, before)


def simulated(path: Path, arrivals: list[Arrival], **options: object) -> Path:
    """The log of a run with two replicas that lag, and decisions that continue others."""
    given: dict[str, object] = {
        "workers": 4, "engine": ENGINE, "replicas": 2, "lag_ms": 40, "continues": True,
        "routing": RoutingSettings(policy="time"),
    }  # fmt: skip
    simulate(Options(**(given | options)), arrivals, archive=path)  # type: ignore[arg-type]
    return path


def with_snapshot(path: Path, out: Path, seq: int, *, without: int = 0) -> Path:
    """The log with a snapshot of the moment when its routing stream was so far, and without the routing message
    `without`."""
    with Recording.open(path, KEY) as recording:
        state = recording.state_at(recording.cursor(AtSequence(ROUTING, StreamSeq(seq))))
        content = b"".join(encode(state))
        manifest = Manifest(
            id="1", fold_version=FOLD_VERSION, made_ms=1, by="0" * 16, fence=1, cursor=cursor_of(state),
            digest=f"{state.digest:016x}", incomplete=0, chunks=1, first_seq=1, size_bytes=len(content),
            checksum=digest(content, KEY.chain_key).hex(),
        )  # fmt: skip
        source = recording.archive
        writer = ArchiveWriter(out, "simulated", KEY.chain_key, "contrail test", 1)
        for stream in source.streams:
            span = source.span(stream)
            writer.open(stream, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            for record in source.read(stream):
                if (stream, record.seq) != (ROUTING, without):
                    writer.add(record)
            writer.reached(stream, span.last_seq)
        writer.add_snapshot(manifest, content)
        writer.finish(writer.contents(0, 0))
    return out
