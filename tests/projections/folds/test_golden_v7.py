"""The log of version 7 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.codec import decode_message
from core.events import PromptBase, ReplicaJoined, RequestRouted
from core.events.routing import Columns
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.prompt import HASH_BYTES, column_digest, sampled
from core.subjects import ROUTING
from projections.folds.in_flight import known_depth
from projections.folds.routing_fold import in_flight
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from tests.golden.make_v1 import ROUTER, STEADY
from tests.golden.make_v6 import turn
from tests.golden.make_v7 import OTHER, PROMPTS
from tests.projections.speaker import CHAIN_KEY

V7 = Path(__file__).parents[2] / "golden" / "v7.log.jsonl"
V7_DIGEST = 0x9CFCF3757F7558E2
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V7.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


def decisions() -> list[RequestRouted]:
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    return [event for event in events if isinstance(event, RequestRouted)]


@pytest.fixture(scope="module")
def state() -> State:
    folded = State(CHAIN_KEY)
    for stream in ("kv_0", "kv_1", "load", ROUTING):
        folded.open(StreamName(stream), Epoch(1_700_000_000_000))
    for stream, seq, subject, payload in records():
        assert folded.apply(stream, seq, subject, payload) is not None
    return folded


def test_decisions_of_all_versions_read_as_they_did() -> None:
    """The form on the wire is all that is different."""
    first, second, third, whole = decisions()
    hashes = [prompt.hashes() for prompt in PROMPTS.values()]
    assert [event.v for event in (first, second, third, whole)] == [1, 2, 3, 3]
    assert (first.hashes, second.hashes, third.hashes, whole.hashes) == (
        hashes[0], hashes[1][70 * HASH_BYTES :], hashes[2][76 * HASH_BYTES :], OTHER.hashes(),
    )  # fmt: skip
    assert second.base == PromptBase(2, 0, 70, 2, 0, sampled(hashes[1], 70), column_digest(hashes[1]))
    assert third.base == PromptBase(3, 0, 76, 2, 0, sampled(hashes[2], 76), column_digest(hashes[2]))
    assert whole.base is first.base is UNSET
    assert [type(event.columns) for event in (first, second, third, whole)] == [dict, dict, Columns, Columns]
    assert (tuple(third.columns), third.columns["overlap"]) == (tuple(second.columns), second.columns["overlap"])
    assert (third.worker, third.tenant, third.seed, third.policy) == (STEADY, "tenant", 2**63 + 1, second.policy)
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    (joined,) = (event for event in events if isinstance(event, ReplicaJoined))
    assert (joined.reads, joined.routed_version) == (3, 3)


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same."""
    assert f"{state.digest:016x}" == f"{V7_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_replica_has_what_it_had(state: State) -> None:
    """The version of a decision makes no difference in flight."""
    part = state.routing.replicas[ReplicaId(ROUTER)]
    second, third, whole = (part.in_flight[RequestId(f"request {number}"), 0] for number in (2, 3, 4))
    assert [(entry.worker, entry.base_blocks) for entry in (second, third, whole)] == [
        (STEADY, 70), (STEADY, 76), (STEADY, 0)
    ]  # fmt: skip
    assert [known_depth(third, turn(blocks)) for blocks in (90, 80, 75, 10)] == [85, 79, 74, 1]
    assert (in_flight(replace(decisions()[2], v=2)), part.routed) == (third, {"tiny": 4})
