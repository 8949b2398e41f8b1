"""Writes `v2.log.jsonl`: what came into the log after version 1, as `make_v1` wrote what was there before.

Replicas that report and compare their folds, a request that goes on with another worker, the ends of workers in the
load stream, and messages that are missing.
The file is history: it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v2
"""

from __future__ import annotations

from pathlib import Path

from core.codec import DIGEST_BYTES
from core.events import (
    CacheRestated,
    DivergenceFound,
    LoadReported,
    LocalChanged,
    Points,
    ReplicaJoined,
    ReplicaReported,
    ReplicaRestated,
    RequestMigrated,
    SettingsChanged,
    WorkerLeft,
    WorkerLost,
)
from core.ids import StreamName, StreamSeq
from core.prompt import hashes_to_bytes
from core.subjects import LOAD, ROUTING
from tests.golden.make_v1 import GONE, HASHES, KV_0, LOST, ROUTER, SETTINGS, SHAKY, STEADY, Scribe, joined, stored

GOLDEN = Path(__file__).parent / "v2.log.jsonl"


def write_workers(log: Scribe) -> None:
    """Two that go on, one of them with a gap; one that leaves and one that is lost, each in both of its streams."""
    load = LoadReported(running=1, waiting=2, blocks_used=4, blocks_total=4096)
    for worker in (STEADY, SHAKY, GONE, LOST):
        log.write(KV_0, worker, joined(f"decode of {worker}"), stored(0, 4))
        log.write(LOAD, worker, load)
    for _ in range(3):
        log.speaker(KV_0, SHAKY).say(stored(4, 8))
    log.write(KV_0, SHAKY, stored(8, 9))
    log.write(KV_0, SHAKY, joined("decode again"))
    log.write(KV_0, SHAKY, CacheRestated(part=0, parts=1, hashes=hashes_to_bytes(HASHES[:6])))
    for stream in (KV_0, LOAD):
        log.write(stream, GONE, WorkerLeft(reason="stopped"))
        log.write(stream, f"{LOST}-lost", WorkerLost(by=ROUTER, reason="no lease, no answer"), about=LOST)


def write_replica(log: Scribe) -> None:
    """It says who it is, reports, finds a divergence, and restates itself; nothing of that but the last counts."""
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0"))
    log.write(ROUTING, ROUTER, reported(log, KV_0))
    epoch = log.state.cursor[KV_0].epoch
    found = DivergenceFound(stream=KV_0, epoch=epoch, seq=4, digest=1, refolded=2, other="f6" * 8, verdict="replaced")
    moved = RequestMigrated(request="first", attempt=1, worker=LOST, told_tokens=7, reason="the connection broke")
    log.write(ROUTING, ROUTER, found, moved)
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0"))
    log.write(ROUTING, ROUTER, SettingsChanged(revision=3, settings=SETTINGS.to_mapping()), restatement())
    log.write(ROUTING, ROUTER, LocalChanged(worker=SHAKY, reasons=("suspected",)))


def reported(log: Scribe, stream: StreamName) -> ReplicaReported:
    """What this very fold had at the stream's first two messages; digests are of no fold version that is kept."""
    points = [log.state.point(stream, StreamSeq(seq)) for seq in (1, 2)]
    heads = b"".join(point.head for point in points if point is not None)
    assert len(heads) == len(points) * DIGEST_BYTES
    column = Points(epoch=log.state.cursor[stream].epoch, seqs=(1, 2), digests=hashes_to_bytes([7, 8]), heads=heads)
    return ReplicaReported(fold_version=2, points={stream: column}, incomplete=(ROUTING,))


def restatement() -> ReplicaRestated:
    return ReplicaRestated(
        requests=("first",),
        attempts=(1,),
        models=("tiny",),
        workers=bytes.fromhex(STEADY),
        blocks=(10,),
        prefill_tokens=(32,),
        reason="a quarter of the retention time is over",
    )


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log = Scribe()
    write_workers(log)
    write_replica(log)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
