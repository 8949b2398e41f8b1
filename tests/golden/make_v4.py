"""Writes `v4.log.jsonl`: what came into the log with the queue in the router, as `make_v3` wrote what was there before.

Requests that wait and are routed, refused by a decision, or turned away for each reason; settings that bound the queue.
The file is history: it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v4
"""

from __future__ import annotations

from pathlib import Path

from core.events import (
    ReplicaJoined,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    SettingsChanged,
)
from core.events.routing import TURNED_AWAY, WAITS_FOR, RequestQueued, RequestTurnedAway
from core.settings import RoutingSettings
from core.subjects import ROUTING
from tests.golden.make_v1 import KV_0, PROMPT, ROUTER, STEADY, Scribe, joined, stored

GOLDEN = Path(__file__).parent / "v4.log.jsonl"
SETTINGS = RoutingSettings(policy="kv", decode_weight_m=500, active_max=4, queue_max=16, queue_wait_max_ms=5000)


def queued(request: str, why: str, depth: int) -> RequestQueued:
    return RequestQueued(
        request=request, model="tiny", priority=-1, tenant="tenant", prompt_tokens=PROMPT.tokens, why=why, depth=depth,
        now_ms=1_700_000_000_400,
    )  # fmt: skip


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log = Scribe()
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0"))
    log.write(ROUTING, ROUTER, SettingsChanged(revision=1, settings=SETTINGS.to_mapping()))
    for depth, why in enumerate(WAITS_FOR):
        log.write(ROUTING, ROUTER, queued(f"request {depth}", why, depth))
    routed = log.route("request 0")
    assert isinstance(routed, RequestRouted)
    log.write(ROUTING, ROUTER, routed)
    log.write(ROUTING, ROUTER, RequestPrefilled(request="request 0", attempt=0, cached_tokens=32, ttft_ms=170))
    rejected = log.route("request 1", "huge")
    assert isinstance(rejected, RequestRejected)
    log.write(ROUTING, ROUTER, rejected)
    away = [
        RequestTurnedAway(
            request="request 2", model="tiny", reason=reason, status=status, waited_ms=-1, tenant="tenant"
        )
        for reason, status in TURNED_AWAY.items()
    ]
    log.write(ROUTING, ROUTER, *away)
    ended = RequestFinished(
        request="request 0", attempt=0, outcome="length", prompt_tokens=PROMPT.tokens, output_tokens=3,
        cached_tokens=32, ttft_ms=170, duration_ms=300,
    )  # fmt: skip
    second = log.route("request 3")
    assert isinstance(second, RequestRouted)
    log.write(ROUTING, ROUTER, ended, second)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
