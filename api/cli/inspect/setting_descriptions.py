"""What each setting means, with its unit, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.settings import APPROXIMATE, POLICIES

LEARNED = "0 per token: learned, and the base is ignored"
MEANINGS = {
    "policy": f"how a worker is chosen: {', '.join(POLICIES)}",
    "prefill_weight": "kv, approximate: price of a block that must be computed, those queued before it included",
    "decode_weight": "kv, approximate: price of an active block",
    "request_weight": "kv, approximate: price of an active request, in blocks",
    "device_credit": "what a cached block on the device takes off, in blocks",
    "host_credit": "the same for a block in host memory",
    "disk_credit": "the same for a block on disk",
    "remote_credit": "the same for a block in a remote store",
    "pending_credit": "the same for a block that another request is computing there now",
    "stale_credit": "all credit of a worker whose load reports stopped is multiplied by this",
    "own_weight": "time: price of a microsecond of the request's own prefill; above 1 for the copy that it makes",
    "own_request_weight": "time: the same once more for each active request there",
    "active_weight": "time: price of active blocks: of each token that fits into them, in prefills of a token",
    "prefill_base_us": f"time, session: a prefill is taken to last so many microseconds …; {LEARNED}",
    "prefill_us_per_token": f"time, session: … and so much longer for each token that it computes; {LEARNED}",
    "hold_max_ms": "time: how long a request may be held until its worker has room for it; 0 sends it at once",
    "session_wait_max_ms": "session: with longer to wait for prefills there, the session's next worker is taken",
    "approximate_ttl_s": "approximate: for how many seconds a block counts as cached where it was sent; 0 for ever",
    "approximate_blocks_max": "approximate: blocks counted as cached on one worker at most; 0 as many as it holds",
    "tie_margin": "costs this close to the lowest, in blocks, count as equal",
    "temperature": "0 takes the cheapest worker; above, dearer ones get their share",
    "waiting_max": "a worker with so many waiting requests is left out",
    "candidates_recorded_max": "how many of the best candidates a decision records",
    "remote_prefill_min_tokens": "a prompt of which its worker's cache lacks more may be computed elsewhere",
    "prefill_queue_max": "if fewer jobs than this wait for prefill workers; 0 keeps all prefill where the decoding is",
    "active_max": "with so many requests in flight per worker further ones wait; 0 goes by what engines run at once",
    "queue_max": "how many requests of a model may wait in each front end; 0 refuses them at once",
    "queue_wait_max_ms": "a request that waits so many milliseconds, or would have to, is refused",
    "prefill_wait_max_ms": "after so many milliseconds a decode worker computes the prompt itself",
}
"""By key; a test demands one for every setting."""

UNDER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("prefill_weight", "decode_weight", "request_weight"), ("kv", APPROXIMATE)),
    **dict.fromkeys(("own_weight", "own_request_weight", "active_weight", "hold_max_ms"), ("time",)),
    **dict.fromkeys(("prefill_base_us", "prefill_us_per_token"), ("time", "session")),
    "session_wait_max_ms": ("session",),
    **dict.fromkeys(("approximate_ttl_s", "approximate_blocks_max"), (APPROXIMATE,)),
}
"""The policies that look at a setting, where not all do."""


def without_effect(keys: Iterable[str], policy: str) -> list[str]:
    """Of these settings, those that change nothing under the policy, each with the policies that look at it."""
    return [f"{key} (for {', '.join(UNDER[key])})" for key in keys if policy not in UNDER.get(key, (policy,))]
