"""The log of version 1 is kept; it must fold for ever to what it meant when it was written."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from core.codec import decode_message
from core.events import (
    EVENT_TYPES,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    AnswerDelayed,
    DivergenceFound,
    LoadReported,
    PoolJoined,
    PoolLeft,
    PoolLost,
    ReplicaReported,
    RequestMigrated,
    RequestRouted,
    UnknownEvent,
)
from core.events.jobs import (
    JobEvent,
    JobsRestated,
)
from core.events.routing import QueueEvent
from core.events.scale import SCALE_EVENTS
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId, from_column
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.in_flight import WorkerLoad
from projections.folds.state import State
from tests.projections.speaker import CHAIN_KEY

V1 = Path(__file__).parents[2] / "golden" / "v1.log.jsonl"
V1_DIGEST = 0x960D255F65E4F292
"""Under FOLD_VERSION 2. A fold of another version may have another digest; what it holds, below, stays."""
LATER = {
    AnswerDelayed, RequestMigrated, ReplicaReported, DivergenceFound, JobsRestated, *get_args(JobEvent),
    *get_args(QueueEvent), PoolJoined, PoolLeft, PoolLost, *SCALE_EVENTS,
    AdapterLoaded, AdapterEvicted, AdapterUnloaded,
}  # fmt: skip
"""Types that came after version 1."""
STEADY, SHAKY = WorkerId("a1" * 8), WorkerId("b2" * 8)
ROUTER, RESTATED = ReplicaId("e5" * 8), ReplicaId("f6" * 8)
PROMPT = Prompt(tokens_to_bytes(range(1000, 1160)), 16, 42)
HASHES = hashes_from_bytes(PROMPT.hashes())


def records() -> Iterator[tuple[StreamName, StreamSeq, str, bytes]]:
    for line in V1.read_text().splitlines():
        fields = json.loads(line)
        yield fields["stream"], fields["seq"], fields["subject"], base64.b64decode(fields["payload"])


@pytest.fixture(scope="module")
def state() -> State:
    folded = State(CHAIN_KEY)
    for stream, seq, subject, payload in records():
        folded.open(stream, Epoch(1_700_000_000_000))
        assert folded.apply(stream, seq, subject, payload) is not None
    return folded


def test_it_holds_every_type_of_version_1() -> None:
    """None is left out, and those of a later version are read as unknown."""
    counts = Counter(type(event) for *_, payload in records() for event in decode_message(payload).events)
    assert set(counts) >= set(EVENT_TYPES.values()) - LATER
    assert counts[UnknownEvent] == 2


def test_its_digest_is_what_it_was(state: State) -> None:
    """Every bit of every fold."""
    assert f"{state.digest:016x}" == f"{V1_DIGEST:016x}"
    assert dict(state.cursor) == {
        "kv_0": (1_700_000_000_000, 9),
        "kv_1": (1_700_000_000_000, 5),
        "load": (1_700_000_000_000, 3),
        "routing": (1_700_000_000_000, 18),
    }
    assert (state.incomplete, state.unknown_events, state.corrupt) == (0, 2, 0)


def test_its_blocks_are_what_they_were(state: State) -> None:
    """Per worker and tier, and as a lookup sees them."""
    held = {
        (worker, tier): state.index.held(WorkerId(worker), tier)
        for worker in ("a1" * 8, "b2" * 8, "c3" * 8, "d4" * 8)
        for tier in ("device", "host", "disk", "remote")
    }
    expected = {(STEADY, "device"): set(HASHES[:7]), (SHAKY, "device"): set(HASHES[:2]), (SHAKY, "disk"): {HASHES[2]}}
    assert {key: blocks for key, blocks in held.items() if blocks} == expected
    assert state.index.overlaps(PROMPT) == {STEADY: (7, 7, 7, 7), SHAKY: (2, 2, 3, 3)}


def test_its_workers_are_what_they_were(state: State) -> None:
    """Who is alive, how the others ended, and what they last reported."""
    assert [member.worker for member in state.alive()] == [STEADY, SHAKY]
    assert [member.joined.name for member in state.alive() if member.joined] == ["decode-0", "decode-1"]
    ends = {worker: why for kv in state.kv.values() for worker, why in kv.ended.items()}
    assert ends == {"c3" * 8: "left: stopped", "d4" * 8: "lost: silent for 10 s"}
    assert set(state.loads.reports) == {STEADY, SHAKY}
    steady = state.loads.reports[STEADY]
    assert isinstance(steady, LoadReported)
    assert (steady.running, steady.kv_n, steady.cached_tokens, steady.blocks_unindexed) == (3, 5, 640, 3)


def test_its_requests_are_what_they_were(state: State) -> None:
    """What is in flight where, who is pending, and predicted against real reuse."""
    assert state.routing.in_flight_load.busy == {STEADY: WorkerLoad(18, 2, 0), SHAKY: WorkerLoad(21, 2, 272)}
    assert {request for (request, _), _ in state.routing.in_flight_load.pending(PROMPT)} == {"third"}
    router, restated = state.routing.replicas[ROUTER], state.routing.replicas[RESTATED]
    assert set(router.in_flight) == {("second", 0), ("third", 0)}
    assert set(restated.in_flight) == {("fourth", 0), ("fifth", 1)}
    reuse = router.reuse
    assert (reuse.requests, reuse.prompt_tokens, reuse.predicted_tokens, reuse.cached_tokens) == (2, 320, 256, 96)
    assert router.local == {SHAKY: ("stale",)}
    assert (router.routed, router.settings_revision) == ({"tiny": 3}, 1)
    assert RoutingSettings.parse(router.settings) == RoutingSettings(policy="kv", decode_weight_m=500)
    assert state.routing.ended == {"07" * 8: "left: stopped", "18" * 8: "lost: no lease"}


def test_its_decisions_read_as_they_were() -> None:
    """Columns line up with candidates; the record names the prompt by its hashes and where each stream stood."""
    messages = [decode_message(payload) for stream, *_, payload in records() if stream == ROUTING]
    first = next(event for each in messages for event in each.events if isinstance(event, RequestRouted))
    assert (first.request, first.worker, from_column(first.candidates)) == ("first", STEADY, [STEADY, SHAKY])
    assert hashes_from_bytes(first.hashes) == HASHES
    assert first.columns["overlap"] == (7, 2)
    assert first.cursor["kv_0"] == (1_700_000_000_000, 9)
