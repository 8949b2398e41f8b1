"""What an explanation says of decisions that estimate times, and of those that keep sessions together: keys of
`contrail explain --json`. Times are in milliseconds."""

from __future__ import annotations

import msgspec


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """How long one candidate would have taken, as was estimated."""

    tokens: int
    """Of the prompt, that it would have computed."""
    own_ms: float | None
    """How long that lasts; None where the policy does not ask, or the log does not tell."""
    outstanding_ms: float
    """How long prefills that the worker had would have held it up …"""
    held_ms: float
    """… and how long those that the router held, and would have sent there before it; or what it computed for other
    replicas when it declined a request."""
    decode_tokens: int
    """How many tokens fit into the active blocks there."""


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimates of a decision went by. Under `time` the cost of a candidate is the sum of

    own_weight * own_ms + (outstanding_ms + held_ms) + active_weight * decode_tokens * per_token_us / 1000
    + own_request_weight * own_ms * active_requests

    each term rounded down to a microsecond, the price of a block to a nanosecond; under `session` it is what the wait
    is longer than session_wait_max_ms.
    """

    exact: bool
    """Whether that gives every recorded cost to the microsecond; else nothing is taken apart."""
    weights: dict[str, float]
    """The settings above by name; empty if not `exact`."""
    weights_known: bool
    """Whether the log has them; else these are the defaults."""
    base_ms: float
    """A prefill was taken to last so long …"""
    per_token_us: float
    """… and so many microseconds for each token."""
    source: str
    """Of these two: `set`, `learned` by the replica, or `default`: it had yet to learn them."""


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that comes before the chosen one in a session's order."""

    worker: str
    name: str
    wait_ms: float


class SessionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it was under `session`: workers stand in the order of a hash of the session and the worker."""

    of: str
    """`session`: the client named one; `prefix`: requests whose prompts begin alike are one; `request`: the prompt is
    too short for that."""
    key: str
    """The session's key; the hash of the prompt's first `blocks` blocks; or the request's id."""
    blocks: int
    """0 but for `prefix`."""
    position: int | None
    """The chosen worker's place in the order, from 1; None if the log does not tell of all before it."""
    wait_max_ms: float
    passed: list[Passed]
    """Those before it, in order; each has more to wait for than that, or than the chosen one."""


class HeldBy(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose prefill on the chosen worker ended while this one was held for that worker."""

    request: str
    tokens: int
    """That it was expected to compute."""
    after_ms: int
    """When its first token came, after this one was held, by the log's clock."""


class HeldBeside(msgspec.Struct, frozen=True, kw_only=True):
    """Another request that the same replica held when this one was sent."""

    request: str
    tokens: int
    """Of its prompt."""
    worker: str
    name: str
    """Where it went in the end."""
    after_ms: int
    """How much later than this one it was sent."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The part that holding had in a decision."""

    held_ms: int | None
    """How long this request was held; None if it was not."""
    by: list[HeldBy]
    """What the chosen worker computed meanwhile, in the order in which it was done."""
    beside: list[HeldBeside]
    """Who was held with it, in the order in which they were sent; those placed before it make `held_ms` of the
    candidates."""
