"""The log of version 3 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from core.codec import decode_message
from core.events import RequestPrefilled, RequestRouted
from core.events.jobs import JobEvent, PrefillCompleted
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq, WorkerId
from core.settings import RoutingSettings
from core.subjects import JOBS, ROUTING
from projections.folds.jobs_fold import RequestedJob
from projections.folds.pending_events import PendingEvents
from projections.folds.snapshot import decode, encode
from projections.folds.source_fold import ChainGap
from projections.folds.state import State
from projections.policy.decide import decide
from projections.policy.view import RouteRequest, View
from tests.golden.make_v1 import GONE, LOST, PROMPT, ROUTER, SHAKY, STEADY
from tests.golden.make_v3 import FOURTH, PREFILL, SECOND
from tests.projections.speaker import CHAIN_KEY

V3 = Path(__file__).parents[2] / "golden" / "v3.log.jsonl"
V3_DIGEST = 0x50F60537FE59405D
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""
EPOCH = Epoch(1_700_000_000_000)


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V3.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


def folded(until: type[object] | None = None) -> State:
    """All of it, or what is before the first event of that kind."""
    state = State(CHAIN_KEY)
    for stream in ("kv_0", "kv_1", "load", ROUTING, JOBS):
        state.open(StreamName(stream), EPOCH)
    for stream, seq, subject, payload in records():
        if until is not None and any(isinstance(event, until) for event in decode_message(payload).events):
            break
        assert state.apply(stream, seq, subject, payload) is not None
    return state


@pytest.fixture(scope="module")
def state() -> State:
    return folded()


def test_it_holds_the_types_that_came_after_version_2() -> None:
    """They read as they were; the others are in the logs before."""
    events = [event for *_, payload in records() for event in decode_message(payload).events]
    counts = Counter(type(event) for event in events)
    assert all(counts[kind] for kind in get_args(JobEvent))
    completed = next(event for event in events if isinstance(event, PrefillCompleted))
    assert (completed.blocks.ids, completed.blocks.tokens, completed.keep_ms) == (((3, 4, 5), (7, 8, 9)), 160, 30_000)
    prefilled = next(event for event in events if isinstance(event, RequestPrefilled))
    assert prefilled.prefill is not None
    assert (prefilled.prefill.reason, prefilled.prefill.outcome, prefilled.prefill.worker) == (
        "long",
        "pulled",
        PREFILL,
    )


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold; a snapshot of it has the same."""
    assert f"{state.digest:016x}" == f"{V3_DIGEST:016x}"
    assert (state.incomplete, state.unknown_events, state.corrupt) == (1, 0, 0)
    restored = decode(CHAIN_KEY, b"".join(encode(state)))
    assert (restored.digest, restored.cursor) == (state.digest, state.cursor)


def test_its_jobs_are_what_they_were(state: State) -> None:
    """Who waits for what, who computes what, what only is half known; who is over has left a tombstone."""
    jobs = state.jobs
    assert {worker: (set(part.asked), part.taken, part.known) for worker, part in jobs.parts.items()} == {
        STEADY: ({SECOND}, {}, True),
        SHAKY: ({FOURTH}, {}, False),
        PREFILL: (set(), {SECOND: STEADY}, True),
    }
    assert jobs.parts[WorkerId(STEADY)].asked[SECOND] == RequestedJob("tiny", 96, 0)
    assert (jobs.open, jobs.taken, jobs.waiting(), jobs.dead_letters) == (2, 1, {}, 1)
    assert jobs.ended == {GONE: "left: stopped", LOST: "lost: no lease, no answer"}
    assert list(state.gaps) == [ChainGap(JOBS, SHAKY, 0, 0, StreamSeq(5))]  # type: ignore[arg-type]


def test_its_decision_is_what_it_was() -> None:
    """Made again on what stood before it: the same bytes, and the same prefill worker named."""
    routed = next(
        event
        for stream, *_, payload in records()
        if stream == ROUTING
        for event in decode_message(payload).events
        if isinstance(event, RequestRouted)
    )
    view = View(folded(RequestRouted), ReplicaId(ROUTER), PendingEvents(), {"stale": frozenset([WorkerId(SHAKY)])})
    assert view.cursor == routed.cursor
    asked = RouteRequest(RequestId("first"), 0, "tiny", PROMPT, "tenant", 1)
    settings = RoutingSettings(policy="kv", decode_weight_m=500)
    decision = decide(view, asked, settings, routed.now_ms, routed.seed, version=routed.decide_version)
    assert (decision.digest, decision.worker) == (routed.digest, STEADY)
    assert (decision.prefer, decision.prefer_tokens) == (routed.prefer, routed.prefer_tokens) == (PREFILL, 96)
