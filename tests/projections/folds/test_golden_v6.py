"""The log of version 6 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codec import decode_message
from core.events import PromptBase, ReplicaJoined, RequestRouted
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.prompt import HASH_BYTES, column_digest, sampled
from core.subjects import ROUTING
from projections.folds.in_flight import known_depth
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from tests.golden.make_v1 import ROUTER, STEADY
from tests.golden.make_v6 import turn
from tests.projections.speaker import CHAIN_KEY

V6 = Path(__file__).parents[2] / "golden" / "v6.log.jsonl"
V6_DIGEST = 0x42A5D9DCAB1FE659
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V6.read_text().splitlines():
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


def test_a_decision_that_continues_another_reads_as_it_did() -> None:
    """All of its base; the one before has all hashes."""
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    first, second = (event for event in events if isinstance(event, RequestRouted))
    whole, prompt = turn(40).hashes(), turn(50).hashes()
    assert (first.v, first.hashes) == (1, whole)
    assert (second.v, second.hashes) == (2, prompt[40 * HASH_BYTES :])
    assert second.base == PromptBase(2, 0, 40, 2, 0, sampled(prompt, 40), column_digest(prompt))
    (joined,) = (event for event in events if isinstance(event, ReplicaJoined))
    assert (joined.reads, joined.routed_version) == (2, 2)


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same."""
    assert f"{state.digest:016x}" == f"{V6_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_replica_has_what_it_had(state: State) -> None:
    """The second request is being prefilled, and shows where another prompt parts from it."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    entry = part.in_flight[RequestId("request 1"), 0]
    assert (entry.worker, entry.base_blocks) == (STEADY, 40)
    assert [known_depth(entry, turn(blocks)) for blocks in (60, 46, 35, 10)] == [50, 45, 30, 1]
