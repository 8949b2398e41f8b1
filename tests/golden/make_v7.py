"""Writes `v7.log.jsonl`: what came into the log with compact decisions, as `make_v6` wrote what was there before.

Decisions of all three versions, of which each but the first continues the one before, and a compact one that continues
none. The file is history: it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v7
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from actors.membership.decision_bases import DecisionBases
from core.events import ReplicaJoined, RequestPrefilled, RequestRouted
from core.events.routing import COMPACT_VERSION
from core.ids import StreamSeq
from core.prompt import Prompt, tokens_to_bytes
from core.subjects import ROUTING
from tests.golden.make_v1 import BLOCK_SIZE, KV_0, ROUTER, STEADY, Scribe, joined, stored
from tests.golden.make_v6 import turn

GOLDEN = Path(__file__).parent / "v7.log.jsonl"
OTHER = Prompt(tokens_to_bytes(range(9, 9 + 3 * BLOCK_SIZE)), BLOCK_SIZE, 7)
"""A prompt that shares nothing with another one."""
PROMPTS = {1: turn(70), 2: turn(76), 3: turn(85)}
"""By the version of their decisions."""


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log, bases = Scribe(), DecisionBases()
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0", reads=COMPACT_VERSION))
    for version, prompt in PROMPTS.items():
        routed = log.route(f"request {version}", prompt=prompt)
        assert isinstance(routed, RequestRouted)
        written = bases.shortened(routed, version)
        log.write(ROUTING, ROUTER, written)
        at = log.state.cursor[ROUTING]
        bases.note(at.epoch, StreamSeq(at.seq), [written])
    log.write(ROUTING, ROUTER, RequestPrefilled(request="request 1", attempt=0, cached_tokens=32, ttft_ms=170))
    whole = log.route("request 4", prompt=OTHER)
    assert isinstance(whole, RequestRouted)
    log.write(ROUTING, ROUTER, replace(whole, v=COMPACT_VERSION))
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
