"""Writes `v8.log.jsonl`: what came into the log with short decisions, and with first tokens and ends as arrays, as
`make_v7` wrote what was there before.

Decisions of versions 3 and 4, of which some continue another and one continues none, with and without the names of
streams in their cursors; first tokens and ends of both versions. The file is history: it is never written again by a
later version, which must fold it as it stands.

    python -m tests.golden.make_v8
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from actors.membership.decision_bases import DecisionBases
from core.events import ReplicaJoined, RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import COMPACT_VERSION, PROGRESS_VERSION, SHORT_VERSION
from core.generation import PrefillReport
from core.ids import Epoch, StreamSeq
from core.prompt import Prompt
from core.subjects import JOBS, ROUTING
from tests.golden.make_v1 import KV_0, ROUTER, STEADY, Scribe, finished, joined, stored
from tests.golden.make_v6 import turn
from tests.golden.make_v7 import OTHER

GOLDEN = Path(__file__).parent / "v8.log.jsonl"
JOBS_EPOCH = Epoch(1_699_999_999_000)
"""That of a stream that is opened after two decisions: cursors without it have the names of their streams."""
OPENED_AFTER = 2
DECISIONS: list[tuple[str, int, Prompt]] = [
    ("request 1", COMPACT_VERSION, turn(70)),
    ("request 2", SHORT_VERSION, turn(76)),
    ("request 3", SHORT_VERSION, OTHER),
    ("request 4", SHORT_VERSION, turn(85)),
]
REPORT = PrefillReport(
    remote=False, reason="short", uncached_tokens=48, queued=0, workers=1, min_tokens=512, queue_max=4
)


def progress() -> list[RequestPrefilled | RequestFinished]:
    """First tokens and ends: of the version before, and of this one with and without fields that are often empty."""
    first = RequestPrefilled(request="request 1", attempt=0, cached_tokens=32, ttft_ms=170)
    return [
        first,
        replace(first, request="request 2", v=PROGRESS_VERSION),
        replace(first, request="request 3", prefill=REPORT, v=PROGRESS_VERSION),
        finished("request 1", "stop"),
        replace(finished("request 2", "error"), detail="it broke", ttft_ms=-1, v=PROGRESS_VERSION),
    ]


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log, bases = Scribe(), DecisionBases()
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0", reads=SHORT_VERSION))
    for number, (request, version, prompt) in enumerate(DECISIONS):
        if number == OPENED_AFTER:
            log.state.open(JOBS, JOBS_EPOCH)
        routed = log.route(request, prompt=prompt)
        assert isinstance(routed, RequestRouted)
        written = bases.shortened(replace(routed, v=version), version)
        log.write(ROUTING, ROUTER, written)
        at = log.state.cursor[ROUTING]
        bases.note(at.epoch, StreamSeq(at.seq), [written])
    for event in progress():
        log.write(ROUTING, ROUTER, event)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
