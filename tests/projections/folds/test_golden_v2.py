"""The log of version 2 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codec import decode_message
from core.events import DivergenceFound, ReplicaReported, RequestMigrated
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId
from projections.folds.in_flight import InFlight
from projections.folds.snapshot import decode, encode
from projections.folds.source_fold import ChainGap
from projections.folds.state import State
from tests.golden.make_v1 import GONE, HASHES, KV_0, LOST, ROUTER, SHAKY, STEADY
from tests.projections.speaker import CHAIN_KEY

V2 = Path(__file__).parents[2] / "golden" / "v2.log.jsonl"
V2_DIGEST = 0xC110E124F9A706D0
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""
EPOCH = Epoch(1_700_000_000_000)


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V2.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


@pytest.fixture(scope="module")
def state() -> State:
    folded = State(CHAIN_KEY)
    for stream, seq, subject, payload in records():
        folded.open(stream, EPOCH)
        assert folded.apply(stream, seq, subject, payload) is not None
    return folded


def test_it_holds_the_types_that_came_after_version_1() -> None:
    """They read as they were; the others are in the log of version 1."""
    counts = Counter(type(event) for *_, payload in records() for event in decode_message(payload).events)
    assert [counts[kind] for kind in (RequestMigrated, ReplicaReported, DivergenceFound)] == [1, 1, 1]
    reported = next(
        event
        for *_, payload in records()
        for event in decode_message(payload).events
        if isinstance(event, ReplicaReported)
    )
    assert (reported.points[KV_0].seqs, reported.incomplete) == ((1, 2), ("routing",))


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same."""
    assert f"{state.digest:016x}" == f"{V2_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_workers_are_what_they_were(state: State) -> None:
    """Who is over has left a tombstone in both streams and nothing else."""
    assert [member.worker for member in state.alive()] == [STEADY, SHAKY]
    ends = {GONE: "left: stopped", LOST: "lost: no lease, no answer"}
    assert (state.kv[KV_0].ended, state.loads.ended) == (ends, ends)
    assert set(state.loads.reports) == set(state.loads.chains) == {STEADY, SHAKY}
    assert state.index.held(WorkerId(STEADY)) == set(HASHES[:4])
    assert state.index.held(WorkerId(SHAKY)) == set(HASHES[:6])


def test_what_was_missing_is_named(state: State) -> None:
    """Which messages of whom, and where that was noticed."""
    assert list(state.gaps) == [ChainGap(KV_0, SHAKY, 1, 3, StreamSeq(5))]  # type: ignore[arg-type]
    assert str(state.gaps[0]) == f"messages 1 to 3 of worker {SHAKY} are missing before kv_0:5"


def test_its_replica_is_what_it_was(state: State) -> None:
    """What it restated, and what only it knows."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    assert part.in_flight == {("first", 1): InFlight(WorkerId(STEADY), 10, 32)}
    assert (part.local, part.settings_revision, part.known) == ({SHAKY: ("suspected",)}, 3, True)
