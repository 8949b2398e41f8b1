"""Writes `v1.log.jsonl`: a log of version 1 with every type of event, the same bytes at every run of that version.

Each line is one record: stream, seq, subject and the sealed payload in base64. The chain key is bytes 0 to 31.
The file is history: it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v1
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from core.codec import encode_event
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    Event,
    LoadReported,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    SettingsChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq, WorkerId, to_column
from core.prompt import Prompt, hashes_from_bytes, hashes_to_bytes, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import decide, record, recorded_exclusions
from projections.policy.view import RouteRequest, View
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

GOLDEN = Path(__file__).parent / "v1.log.jsonl"
KV_0, KV_1 = StreamName("kv_0"), StreamName("kv_1")
STREAMS = (KV_0, KV_1, LOAD, ROUTING)
BLOCK_SIZE = 16
SEED = 42
STEADY, SHAKY, GONE, LOST = ("a1" * 8, "b2" * 8, "c3" * 8, "d4" * 8)
"""Workers: one that only works, one with a gap, one that left, one that was lost."""
ROUTER, RESTATED, LEFT, DEAD = ("e5" * 8, "f6" * 8, "07" * 8, "18" * 8)
"""Replicas, likewise."""
PROMPT = Prompt(tokens_to_bytes(range(1000, 1000 + 10 * BLOCK_SIZE)), BLOCK_SIZE, SEED)
HASHES = hashes_from_bytes(PROMPT.hashes())
SETTINGS = RoutingSettings(policy="kv", decode_weight_m=500)


class Scribe:
    """Writes the log and folds it, so that decisions rest on it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.state = State(CHAIN_KEY)
        self._speakers: dict[tuple[str, str], Speaker] = {}
        for stream in STREAMS:
            self.state.open(stream, Epoch(1_700_000_000_000))

    def speaker(self, stream: str, source: str, about: str = "") -> Speaker:
        return self._speakers.setdefault((stream, source), Speaker(stream, source, about=about))

    def write(self, stream: str, source: str, *events: Event, about: str = "") -> None:
        self.put(self.speaker(stream, source, about).say(*events))

    def put(self, said: Said) -> None:
        seq = StreamSeq(self.state.cursor[said.stream].seq + 1)
        payload = base64.b64encode(said.payload).decode()
        self.lines.append(json.dumps({"stream": said.stream, "seq": seq, "subject": said.subject, "payload": payload}))
        self.state.apply(said.stream, seq, said.subject, said.payload)

    def route(self, request: str, model: str = "tiny", prompt: Prompt = PROMPT) -> RequestRouted | RequestRejected:
        """What ROUTER decides now."""
        local = {"stale": frozenset([WorkerId(SHAKY)])}
        view = View(self.state, ReplicaId(ROUTER), PendingEvents(), local)
        asked = RouteRequest(RequestId(request), 0, model, prompt, "tenant", 1)
        decision = decide(view, asked, SETTINGS, now_ms=1_700_000_000_500, seed=2**63 + 1)
        if decision.worker is not None:
            return record(decision, asked, SETTINGS, 1)
        return RequestRejected(
            request=request,
            attempt=0,
            model=model,
            reason="no_workers",
            status=503,
            cursor=decision.cursor,
            excluded=recorded_exclusions(decision.excluded),
            settings_revision=1,
            now_ms=decision.now_ms,
        )


def joined(name: str, partition: int = 0) -> WorkerJoined:
    return WorkerJoined(
        name=name,
        model="tiny",
        role="decode",
        engine="simulated",
        block_size=BLOCK_SIZE,
        capacity_blocks=4096,
        context_max=32768,
        address="127.0.0.1:9000",
        partition=partition,
        group="rank-group",
    )


def stored(first: int, last: int, tier: str = "device") -> BlocksStored:
    parent = HASHES[first - 1] if first else None
    return BlocksStored(hashes=hashes_to_bytes(HASHES[first:last]), parent=parent, tier=tier)


def write_workers(log: Scribe) -> None:
    """Blocks that come and go, a gap and its restatement, a worker that leaves, one that is lost, a stranger."""
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 4))
    log.write(KV_0, STEADY, stored(4, 8), stored(8, 10, "host"))
    log.write(KV_0, STEADY, BlocksRemoved(hashes=hashes_to_bytes(HASHES[7:8])))
    log.write(KV_0, STEADY, BlocksRemoved(hashes=hashes_to_bytes(HASHES[8:10]), tier="host"))
    log.write(KV_1, SHAKY, joined("decode-1", 1), stored(0, 10))
    log.speaker(KV_1, SHAKY).say(CacheCleared(reason="in no log"))
    log.write(KV_1, SHAKY, stored(0, 1))
    log.write(KV_1, SHAKY, joined("decode-1", 1))
    log.write(KV_1, SHAKY, CacheRestated(part=0, parts=2, hashes=hashes_to_bytes(HASHES[:2])))
    log.write(KV_1, SHAKY, CacheRestated(part=1, parts=2, hashes=hashes_to_bytes(HASHES[2:3]), tier="disk"))
    log.write(KV_0, GONE, joined("decode-2"), stored(0, 10), CacheCleared(reason="reset"), stored(0, 2))
    log.write(KV_0, GONE, WorkerLeft(reason="stopped"))
    log.write(KV_0, LOST, joined("decode-3"), stored(0, 5))
    log.write(KV_0, f"{LOST}-lost", WorkerLost(by=ROUTER, reason="silent for 10 s"), about=LOST)
    strange = encode_event(WorkerLeft(reason="of a later version", v=2))
    unheard = encode_event(WorkerLeft(reason="of another type")).replace(b"WorkerLeft", b"WorkerWept")
    log.put(log.speaker(KV_0, STEADY).say_raw(strange, unheard))


def write_loads(log: Scribe) -> None:
    steady = log.speaker(KV_0, STEADY)
    load = LoadReported(running=2, waiting=1, blocks_used=10, blocks_total=4096)
    log.write(LOAD, STEADY, load, LoadReported(running=1, waiting=0, blocks_used=8, blocks_total=4096))
    log.write(LOAD, SHAKY, load)
    full = LoadReported(
        running=3,
        waiting=0,
        blocks_used=9,
        blocks_total=4096,
        draining=False,
        kv_n=steady.n_next,
        kv_head=steady.head,
        prompt_tokens=1000,
        cached_tokens=640,
        blocks_unindexed=3,
    )
    log.write(LOAD, STEADY, full)


def finished(request: str, outcome: str) -> RequestFinished:
    return RequestFinished(
        request=request,
        attempt=0,
        outcome=outcome,
        prompt_tokens=PROMPT.tokens,
        output_tokens=7,
        cached_tokens=96,
        ttft_ms=12,
        duration_ms=90,
        detail="",
    )


def write_replicas(log: Scribe) -> None:
    """Decisions and their ends, a rejection, a gap and its restatement, a replica that leaves, one that is lost."""
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0", address="127.0.0.1:8000"))
    log.write(ROUTING, ROUTER, SettingsChanged(revision=1, settings=SETTINGS.to_mapping()))
    for worker, reasons in ((SHAKY, ("stale",)), (GONE, ("failed",)), (GONE, ())):
        log.write(ROUTING, ROUTER, LocalChanged(worker=worker, reasons=reasons))
    for request in ("first", "second", "third"):
        log.write(ROUTING, ROUTER, log.route(request))
    log.write(ROUTING, ROUTER, RequestPrefilled(request="first", attempt=0, cached_tokens=96, ttft_ms=12))
    log.write(ROUTING, ROUTER, RequestPrefilled(request="second", attempt=0, cached_tokens=0, ttft_ms=80))
    log.write(ROUTING, ROUTER, finished("first", "stop"), log.route("elsewhere", model="large"))
    log.write(ROUTING, RESTATED, ReplicaJoined(name="frontend-1", version="0.1.0"), log.route("void"))
    log.speaker(ROUTING, RESTATED).say(finished("void", "error"))
    log.write(ROUTING, RESTATED, finished("never heard of", "abort"))
    log.write(ROUTING, RESTATED, restatement())
    for replica in (LEFT, DEAD):
        log.write(ROUTING, replica, ReplicaJoined(name="frontend-2", version="0.1.0"), log.route(f"of {replica}"))
    log.write(ROUTING, LEFT, ReplicaLeft(reason="stopped"))
    log.write(ROUTING, f"{DEAD}-lost", ReplicaLost(by=ROUTER, reason="no lease"), about=DEAD)


def restatement() -> ReplicaRestated:
    return ReplicaRestated(
        requests=("fourth", "fifth"),
        attempts=(0, 1),
        models=("tiny", "tiny"),
        workers=to_column([STEADY, SHAKY]),
        blocks=(10, 11),
        prefill_tokens=(0, 160),
        reason="gap",
    )


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log = Scribe()
    write_workers(log)
    write_loads(log)
    write_replicas(log)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
