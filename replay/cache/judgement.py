"""Judgement: one sentence on a cache report: was it the workload, the capacity, failures, or the router? And by tenant
a second one: did one tenant push out others?"""

from __future__ import annotations

import msgspec

from replay.cache.cache_report import BY_TENANT, CacheReport, CacheSums

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
PUSHED_MARGIN = 0.05
"""Of the tokens that workers removed: a tenant that took no more than this beyond its own loss pushed none out."""
NOT_PUSHED, EVENLY, ONE_TENANT = "none", "evenly", "one_tenant"
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


class DisplacementJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on tenants with the numbers that decide it."""

    verdict: str
    """`none`: no removed block of one tenant made room for another's; `evenly`: none gained by it beyond the margin;
    `one_tenant`: one did."""
    tenant: str
    """The one that gained most; empty for none, and for requests without a tenant."""
    text: str
    """One sentence."""


def judge_displacement(found: CacheReport) -> DisplacementJudgement | None:
    """The judgement on a report by tenant; None for others. The one that gained is the one that took most from others
    beyond what it lost to them."""
    total, rest = found.total.displaced, found.remainder
    if found.by != BY_TENANT or total is None or rest is None:
        return None
    removed = total.lost + rest.lost_unowned
    gains = {
        row.name: row.displaced.took_from_others - row.displaced.lost_to_others for row in found.rows if row.displaced
    }
    if not total.lost_to_others or not gains:
        of = f"of {removed:,} tokens that workers removed, none made room for another tenant"
        text = f"No tenant pushed out others: {of}."
        return DisplacementJudgement(verdict=NOT_PUSHED, tenant="", text=text)
    tenant = max(gains, key=gains.__getitem__)
    row = next(row for row in found.rows if row.name == tenant)
    assert row.displaced is not None
    name, took, lost = tenant or "(none)", row.displaced.took_from_others, row.displaced.lost_to_others
    of = f"of {removed:,} tokens that workers removed, {total.lost_to_others:,} made room for another tenant"
    if gains[tenant] <= PUSHED_MARGIN * removed:
        text = f"No tenant pushed out others: {of}, and {name}, which gained most, took {took:,} and lost {lost:,}."
        return DisplacementJudgement(verdict=EVENLY, tenant=tenant, text=text)
    again = found.total.sums.evicted - row.sums.evicted
    text = (
        f"Tenant {name} pushed out others: {of}, and {name} took {took:,} and lost {lost:,}; the others computed "
        f"{again:,} evicted tokens again."
    )
    return DisplacementJudgement(verdict=ONE_TENANT, tenant=tenant, text=text)


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
