"""The log of version 4 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codec import decode_message
from core.events.routing import RequestQueued, RequestTurnedAway
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from tests.golden.make_v1 import ROUTER, STEADY
from tests.projections.speaker import CHAIN_KEY

V4 = Path(__file__).parents[2] / "golden" / "v4.log.jsonl"
V4_DIGEST = 0x82A9420E85E6E515
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V4.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


@pytest.fixture(scope="module")
def state() -> State:
    folded = State(CHAIN_KEY)
    for stream in ("kv_0", "kv_1", "load", ROUTING):
        folded.open(StreamName(stream), Epoch(1_700_000_000_000))
    for stream, seq, subject, payload in records():
        assert folded.apply(stream, seq, subject, payload) is not None
    return folded


def test_what_waited_and_what_was_turned_away_reads_as_it_was() -> None:
    """All fields of both events, and each reason that there was."""
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    queued = [event for event in events if isinstance(event, RequestQueued)]
    assert [(event.request, event.why, event.depth) for event in queued] == [
        ("request 0", "full", 0),
        ("request 1", "overloaded", 1),
        ("request 2", "behind", 2),
    ]
    first = queued[0]
    assert (first.model, first.priority, first.tenant, first.prompt_tokens) == ("tiny", -1, "tenant", 160)
    away = [event for event in events if isinstance(event, RequestTurnedAway)]
    assert [(event.reason, event.status) for event in away] == [
        ("queue_full", 503),
        ("tenant_share", 429),
        ("queue_wait", 503),
        ("stopping", 503),
        ("deadline", 504),
        ("client_gone", 499),
    ]
    assert {(event.request, event.waited_ms, event.tenant) for event in away} == {("request 2", -1, "tenant")}


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same. Waiting leaves no state."""
    assert f"{state.digest:016x}" == f"{V4_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_replica_has_what_it_had(state: State) -> None:
    """One request in flight, and the bounds of the queue among its settings."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    assert {key: entry.worker for key, entry in part.in_flight.items()} == {(RequestId("request 3"), 0): STEADY}
    settings = RoutingSettings.parse(part.settings)
    assert (settings.active_max, settings.queue_max, settings.queue_wait_max_ms) == (4, 16, 5000)
