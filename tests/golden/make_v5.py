"""Writes `v5.log.jsonl`: what came into the log with agents' sessions and failures inside a front end, as `make_v4`
wrote what was there before.

A session and one that it began; a request that failed before any worker, and one amid its answer. The file is history:
it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v5
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from core.events import ReplicaJoined, RequestFinished, RequestRouted
from core.events.routing import INTERNAL, TURNED_AWAY, RequestTurnedAway
from core.subjects import ROUTING
from tests.golden.make_v1 import KV_0, PROMPT, ROUTER, STEADY, Scribe, joined, stored

GOLDEN = Path(__file__).parent / "v5.log.jsonl"
SESSION, BEGUN = "5e55105e55105e55", "b3907b3907b3907b"


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log = Scribe()
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0"))
    for number, (session, parent) in enumerate([(SESSION, ""), (BEGUN, SESSION)]):
        routed = log.route(f"request {number}")
        assert isinstance(routed, RequestRouted)
        log.write(ROUTING, ROUTER, msgspec.structs.replace(routed, session=session, session_parent=parent))
    failed = RequestFinished(
        request="request 0", attempt=0, outcome="error", prompt_tokens=PROMPT.tokens, output_tokens=3,
        cached_tokens=32, ttft_ms=170, duration_ms=300, detail="KeyError at api.openai.answers.sse:40",
    )  # fmt: skip
    away = RequestTurnedAway(
        request="request 2", model="tiny", reason=INTERNAL, status=TURNED_AWAY[INTERNAL], waited_ms=-1, tenant="tenant",
        detail="RuntimeError at api.openai.text.segments:50: dictionary changed size during iteration",
    )  # fmt: skip
    log.write(ROUTING, ROUTER, failed, away)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
