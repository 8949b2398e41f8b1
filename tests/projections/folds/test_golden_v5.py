"""The log of version 5 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codec import decode_message
from core.events import RequestFinished, RequestRouted
from core.events.routing import RequestTurnedAway
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.subjects import ROUTING
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from tests.golden.make_v1 import ROUTER, STEADY
from tests.golden.make_v5 import BEGUN, SESSION
from tests.projections.speaker import CHAIN_KEY

V5 = Path(__file__).parents[2] / "golden" / "v5.log.jsonl"
V5_DIGEST = 0xEDBA396D7A14B29D
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V5.read_text().splitlines():
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


def test_sessions_and_failures_read_as_they_were() -> None:
    """All of their fields."""
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    routed = [event for event in events if isinstance(event, RequestRouted)]
    assert [(event.session, event.session_parent) for event in routed] == [(SESSION, ""), (BEGUN, SESSION)]
    (away,) = (event for event in events if isinstance(event, RequestTurnedAway))
    assert (away.reason, away.status, away.waited_ms) == ("internal", 500, -1)
    assert away.detail == "RuntimeError at api.openai.text.segments:50: dictionary changed size during iteration"
    (ended,) = (event for event in events if isinstance(event, RequestFinished))
    assert (ended.outcome, ended.detail) == ("error", "KeyError at api.openai.answers.sse:40")


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same. Neither a session nor a failure leaves state."""
    assert f"{state.digest:016x}" == f"{V5_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_replica_has_what_it_had(state: State) -> None:
    """One request in flight: the sub-agent's."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    assert {key: entry.worker for key, entry in part.in_flight.items()} == {(RequestId("request 1"), 0): STEADY}
