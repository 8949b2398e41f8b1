"""Judgement: one sentence on a cache report: was it the workload, the capacity, failures, or the router?"""

from __future__ import annotations

import msgspec

from replay.cache.cache_report import CacheSums

MARGIN = 0.005
"""Half a point of the prompt tokens: with less between available and achieved, nothing is to be won."""
NO_TOKENS, NOTHING, WORKLOAD, CAPACITY, FAILURE, ROUTER, UNJUDGED = (
    "none",
    "nothing",
    "workload",
    "capacity",
    "failure",
    "router",
    "unknown",
)
SUBJECTS = {
    WORKLOAD: "It was the workload",
    CAPACITY: "It was the capacity of the caches",
    FAILURE: "It was the loss of workers",
    ROUTER: "It was the router",
    UNJUDGED: "It cannot be said, because messages of workers are missing",
}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict with the numbers that decide it."""

    verdict: str
    """`nothing` is to be won; or the largest part of the tokens that no cache gave: `workload` (in no cache before),
    `capacity` (evicted), `failure` (worker lost), `router` (sent elsewhere, or the replica behind) or `unknown`.
    `none` without any token."""
    text: str
    """One sentence."""


def judge(sums: CacheSums) -> Judgement:
    """The judgement on these sums. Between equal parts the one that an operator can change sooner decides."""
    if not sums.prompt_tokens:
        return Judgement(verdict=NO_TOKENS, text="No request in this range got a first token.")
    if sums.lost <= MARGIN * sums.prompt_tokens:
        return Judgement(verdict=NOTHING, text=_nothing(sums))
    parts = {
        ROUTER: sums.sent_elsewhere + sums.replica_behind,
        CAPACITY: sums.evicted,
        FAILURE: sums.worker_lost,
        WORKLOAD: sums.not_available,
        UNJUDGED: sums.unknown,
    }
    verdict = max(parts, key=parts.__getitem__)
    return Judgement(verdict=verdict, text=f"{SUBJECTS[verdict]}: {_shares(sums)}.")


def _nothing(sums: CacheSums) -> str:
    return (
        f"Nothing is to be won by routing, capacity or repair: {_percent(sums.achieved, sums)} of the prompt tokens "
        f"came from a cache, {_percent(sums.available, sums)} were available, and the rest was in no cache before."
    )


def _shares(sums: CacheSums) -> str:
    causes = {
        "evicted": sums.evicted,
        "worker lost": sums.worker_lost,
        "sent elsewhere": sums.sent_elsewhere,
        "replica behind": sums.replica_behind,
        "not known": sums.unknown,
    }
    ordered = sorted(causes.items(), key=lambda it: -it[1])
    listed = ", ".join(f"{name} {_percent(tokens, sums)}" for name, tokens in ordered if tokens)
    return (
        f"{_percent(sums.not_available, sums)} of the prompt tokens were in no cache before, and "
        f"{_percent(sums.lost, sums)} were available and not used ({listed})"
    )


def _percent(tokens: int, sums: CacheSums) -> str:
    return f"{100 * tokens / sums.prompt_tokens:.2f} %"
