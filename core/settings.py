"""Live settings of routing: what `decide` may be told to weigh, and the one way to parse it.

Numbers that people write with a point are kept in thousandths (`…_m`), because decisions are integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import CallerError, did_you_mean

APPROXIMATE = "approximate"
"""The policy that takes blocks to be cached where they were sent, without the events of engines."""
POLICIES = ("kv", "round-robin", "random", "least-loaded", "time", "power-of-two", "session", APPROXIMATE)
TEXT_CACHE_BYTES = 512 * 2**20
"""Default bound of what a front end keeps of texts that come again: a thousand talks of 100 000 tokens."""
RESERVATIONS_MAX = 1024
"""Default bound of the reservations that are open at one front end (`actors.router.reservations`)."""
RESERVATION_EXPIRES_S = 600
"""Default time after which a reservation without a reported end expires."""
WEIGHT_MAX = 1000.0
COUNT_MAX = 1_000_000
MAY_BE_ZERO = (
    "remote_prefill_min_tokens",
    "prefill_queue_max",
    "active_max",
    "queue_max",
    "prefill_base_us",
    "session_wait_max_ms",
    "hold_max_ms",
    "approximate_ttl_s",
    "approximate_blocks_max",
)
TIERS = ("device", "host", "disk", "remote")
"""Tiers of a cached block, nearest first."""


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of the settings; equal values mean equal decisions."""

    policy: str = "time"
    prefill_weight_m: int = 1000
    """Price of a block that must be computed, those queued before it included."""
    decode_weight_m: int = 60
    """Price of an active block: each one slows every decode step. Every request counts all blocks of its prompt. At the
    price of a block to be computed, a worker that serves one turn of a talk would look too full for the next, the talk
    would move, and its copies would push others out."""
    request_weight_m: int = 0
    """Price of an active request."""
    device_credit_m: int = 1000
    """Discount on the prefill for each block cached on the device."""
    host_credit_m: int = 750
    disk_credit_m: int = 250
    remote_credit_m: int = 250
    pending_credit_m: int = 900
    """The same for a block that another request is computing there right now."""
    stale_credit_m: int = 500
    """Factor on all credit of a worker after its load reports stopped."""
    own_weight_m: int = 3200
    """Policy `time`: price of a microsecond of the request's own prefill. 1 is the time that it takes; the rest stands
    for the copy that it makes, which pushes out what others would have found."""
    own_request_weight_m: int = 30
    """Policy `time`: the same once more for each active request there, all of which the prefill holds up."""
    active_weight_m: int = 90
    """Policy `time`: price of the active blocks: of each token that fits into them, in prefills of a token."""
    reuse_weight_m: int = 250
    """Policy `time`: price of the talks that live on the worker: of a prefill of the whole prompt, for each time that
    the reuse there doubles. Talks stay where they are, and pause; what is in flight says little of them."""
    delay_weight_m: int = 1000
    """Policy `time`: price of a microsecond of delay where talks fill the workers: the request's own, twice, and that
    of each active request which its prefill holds up. Talks come back, so what delays a turn delays the rest."""
    prefill_base_us: int = 0
    """Policies `time` and `session`: a prefill is taken to last so long …"""
    prefill_us_per_token_m: int = 0
    """… and so much longer for each token of the prompt that is computed. 0 per token: both as the replica has learned
    them, and the base is ignored."""
    hold_max_ms: int = 5000
    """Policy `time`: a request is held in the router until the worker that is best for it has room in a
    pass, for so long at most (`projections.policy.binding_plan`). 0 sends it at once."""
    session_wait_max_ms: int = 300
    """Policy `session`: where prefills would have to be waited for longer than this, the session's next worker is
    taken."""
    approximate_ttl_s: int = 0
    """Policy `approximate`: a block is taken to be cached where it was routed to for so long after the last time. 0:
    until others push it out."""
    approximate_blocks_max: int = 0
    """Policy `approximate`: at most so many blocks are taken to be cached on one worker. 0: as many as its reported
    capacity."""
    tie_margin_m: int = 0
    """Costs this close to the lowest, in blocks (milliseconds under `time`), count as equal; then a hash of request
    and worker decides."""
    temperature_m: int = 0
    """0 takes the cheapest; above, dearer workers get their share, by a draw from the recorded seed."""
    waiting_max: int = 256
    """A worker with as many waiting requests is overloaded and left out."""
    candidates_recorded_max: int = 8
    """Candidates that a decision records with all their terms, best first."""
    remote_prefill_min_tokens: int = 512
    """A prompt of which a decode worker's cache lacks more than this may be computed by a prefill worker …"""
    prefill_queue_max: int = 8
    """… if fewer jobs than this wait; 0 keeps all prefill where the decoding is."""
    prefill_wait_max_ms: int = 10_000
    """A decode worker computes the prompt itself this long after it asked."""
    active_max: int = 0
    """Requests in flight per worker, those of all replicas, before further ones wait in the router, where priority and
    fairness order them. 0: what its engine computes at once and a little more, so that it never waits for us."""
    queue_max: int = 1024
    """Requests of one model that wait in one replica; 0 refuses at once what no worker has room for."""
    queue_wait_max_ms: int = 30_000
    """A request that waited so long there is refused; so is at once what would have to wait so long by the rate at
    which requests end."""

    @property
    def holds(self) -> bool:
        """True if requests are held until their worker is free."""
        return self.hold_max_ms > 0 and self.policy == "time"

    @property
    def credits_m(self) -> tuple[int, int, int, int]:
        """Credit per tier, in the order of TIERS."""
        return (self.device_credit_m, self.host_credit_m, self.disk_credit_m, self.remote_credit_m)

    def to_mapping(self) -> dict[str, Any]:
        """The settings as a mapping that `parse` takes; parse(to_mapping()) is equal to self."""
        return {
            name.removesuffix("_m"): value / 1000 if name.endswith("_m") else value
            for name, value in msgspec.structs.asdict(self).items()
        }

    @staticmethod
    def parse(given: Mapping[str, Any]) -> RoutingSettings:
        """The settings with the given ones changed; CallerError names the key and what it may be."""
        known = {name.removesuffix("_m"): name for name in RoutingSettings.__struct_fields__}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                there = did_you_mean(str(key), known) or f"; there are {', '.join(sorted(known))}"
                raise CallerError(f"routing.{key}: no such setting{there}")
            values[known[key]] = _parsed(key, known[key], value)
        return RoutingSettings(**values)


def _parsed(key: str, field: str, value: object) -> str | int:
    if field == "policy":
        if value not in POLICIES:
            near = did_you_mean(str(value), POLICIES)
            raise CallerError(f"routing.policy: {value!r} is none of {', '.join(POLICIES)}{near}")
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CallerError(f"routing.{key}: {value!r} is not a number")
    if field.endswith("_m"):
        if not 0 <= value <= WEIGHT_MAX:
            raise CallerError(f"routing.{key}: {value} is not between 0 and {WEIGHT_MAX:g}")
        return round(value * 1000)
    least = 0 if field in MAY_BE_ZERO else 1
    if value // 1 != value or not least <= value <= COUNT_MAX:  # true for inf and nan, too
        raise CallerError(f"routing.{key}: {value} is not a whole number between {least} and {COUNT_MAX}")
    return int(value)
