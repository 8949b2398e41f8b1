"""Writes `v6.log.jsonl`: what came into the log with decisions that continue others, as `make_v5` wrote what was there
before.

A decision with all hashes of its prompt, and one in flight that continues it. The file is history: it is never written
again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v6
"""

from __future__ import annotations

from pathlib import Path

from actors.membership.decision_bases import DecisionBases
from core.events import ReplicaJoined, RequestPrefilled, RequestRouted
from core.events.routing import CONTINUED_VERSION
from core.ids import StreamSeq
from core.prompt import Prompt, tokens_to_bytes
from core.subjects import ROUTING
from tests.golden.make_v1 import BLOCK_SIZE, KV_0, ROUTER, STEADY, Scribe, joined, stored

GOLDEN = Path(__file__).parent / "v6.log.jsonl"


def turn(blocks: int) -> Prompt:
    """A talk's prompt of so many blocks."""
    return Prompt(tokens_to_bytes(range(blocks * BLOCK_SIZE)), BLOCK_SIZE, 7)


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log, bases = Scribe(), DecisionBases()
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0", reads=CONTINUED_VERSION))
    for number, blocks in enumerate((40, 50)):
        routed = log.route(f"request {number}", prompt=turn(blocks))
        assert isinstance(routed, RequestRouted)
        log.write(ROUTING, ROUTER, bases.shortened(routed))
        at = log.state.cursor[ROUTING]
        bases.note(at.epoch, StreamSeq(at.seq), [routed])
        if number == 0:
            log.write(ROUTING, ROUTER, RequestPrefilled(request="request 0", attempt=0, cached_tokens=32, ttft_ms=170))
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
