"""The log of version 8 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.msgpack import decode as unpack

from core.codec import decode_message, encode_event, encode_message
from core.events import PromptBase, ReplicaJoined, RequestFinished, RequestPrefilled, RequestRouted, WorkerJoined
from core.events.routing import COLUMNS, Columns
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.prompt import HASH_BYTES, column_digest, sampled
from core.subjects import JOBS, ROUTING
from projections.folds.in_flight import known_depth
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from tests.golden.make_v1 import ROUTER, STEADY
from tests.golden.make_v6 import turn
from tests.golden.make_v7 import OTHER
from tests.golden.make_v8 import JOBS_EPOCH, progress
from tests.projections.speaker import CHAIN_KEY

V8 = Path(__file__).parents[2] / "golden" / "v8.log.jsonl"
V8_DIGEST = 0xA9B0BB3DACF5DDF4
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""
EPOCH = Epoch(1_700_000_000_000)


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V8.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


def events() -> list[object]:
    return [event for *_, payload in records() for event in decode_message(payload).events]


def decisions() -> list[RequestRouted]:
    return [event for event in events() if isinstance(event, RequestRouted)]


@pytest.fixture(scope="module")
def state() -> State:
    folded = State(CHAIN_KEY)
    for stream in ("kv_0", "kv_1", "load", ROUTING):
        folded.open(StreamName(stream), EPOCH)
    folded.open(JOBS, JOBS_EPOCH)
    for stream, seq, subject, payload in records():
        assert folded.apply(stream, seq, subject, payload) is not None
    return folded


def test_decisions_read_as_they_did() -> None:
    """With the names of all streams, and with all columns."""
    first, second, whole, last = decisions()
    hashes = turn(85).hashes()
    assert [event.v for event in (first, second, whole, last)] == [3, 4, 4, 4]
    assert second.base == PromptBase(2, 0, 70, 2, 0, sampled(hashes, 70), column_digest(turn(76).hashes()))
    assert last.base == PromptBase(3, 0, 76, 2, 0, sampled(hashes, 76), column_digest(hashes))
    assert (last.hashes, whole.hashes) == (hashes[76 * HASH_BYTES :], OTHER.hashes())
    assert whole.base is first.base is UNSET
    others = [("kv_0", (EPOCH, 1)), ("kv_1", (EPOCH, 0)), ("load", (EPOCH, 0))]
    assert [*second.cursor.items()] == [*others, (ROUTING, (EPOCH, 2))]
    assert [*last.cursor.items()] == [(JOBS, (JOBS_EPOCH, 0)), *others, (ROUTING, (EPOCH, 4))]
    for event in (second, whole, last):
        assert isinstance(event.columns, Columns)
        assert (tuple(event.columns), event.columns["known"], event.columns["waiting"]) == (COLUMNS, (1,), (0,))
    assert [event.columns["pending"] for event in (second, whole, last)] == [(70,), (0,), (76,)]
    assert (last.worker, last.tenant, last.seed) == (STEADY, "tenant", 2**63 + 1)
    (joined,) = (event for event in events() if isinstance(event, ReplicaJoined))
    assert (joined.reads, joined.routed_version) == (4, 4)


def test_progress_reads_as_it_did() -> None:
    """First tokens and ends, of both versions."""
    assert [event for event in events() if isinstance(event, RequestPrefilled | RequestFinished)] == progress()


def test_it_is_written_as_it_was() -> None:
    """The bytes of all events: a journal of this version is recognized by them. Joins of workers stand in none. They
    have more fields since, so the head of their map is longer; their content is what it was."""
    for *_, payload in records():
        message = decode_message(payload)
        encodings = [encode_event(event) for event in message.events]  # type: ignore[arg-type]  # all are known
        again = encode_message(message.source, message.n, message.prev, message.sent_ms, encodings)
        has_join = any(isinstance(event, WorkerJoined) for event in message.events)
        assert (unpack(again) == unpack(payload)) if has_join else (again == payload)
    types = [event["type"] for *_, payload in records() for event in unpack(payload)["events"]]
    assert types[3:] == [
        "RequestRouted3", *["RequestR4"] * 3, "RequestPrefilled", *["First2"] * 2, "RequestFinished",
        "End2",
    ]  # fmt: skip


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same."""
    assert f"{state.digest:016x}" == f"{V8_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_replica_has_what_it_had(state: State) -> None:
    """Two ended, two are in flight, of which one had its first token."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    assert [*part.in_flight] == [(RequestId("request 4"), 0), (RequestId("request 3"), 0)]
    last, whole = part.in_flight.values()
    assert [(entry.worker, entry.base_blocks) for entry in (last, whole)] == [(STEADY, 76), (STEADY, 0)]
    assert [known_depth(last, turn(blocks)) for blocks in (90, 80, 75, 10)] == [85, 79, 74, 1]
    assert (whole.prefill_tokens, part.routed) == (0, {"tiny": 4})
