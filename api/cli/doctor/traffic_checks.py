"""Checks of the newest traffic: what prefills are taken to last, the workers and front ends that died, and lost cache
hits. All decisions may follow from the log while one of these makes answers slow.

Each reads the copy whose decisions are verified, and its sentence says which part of the log that is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from api.cli.doctor.finding import Finding
from api.cli.doctor.newest_copy import NewestCopy
from api.cli.quantities import count_text, ms_text, percent_text, plural, seconds_text
from api.cli.renderer import OK, WARNING
from core.errors import CallerError, Corrupt, PeerError
from core.event_json import time_text
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import BY_HOUR, BY_SESSION, BY_WORKER, CacheReport
from replay.cache.judgement import NO_TOKENS, NOTHING, WORKLOAD, judge
from replay.explain.death_list import WORKER, Death, complete_from_ms, list_deaths
from replay.explain.price_check import (
    FACTOR_MAX,
    SAMPLES_MIN,
    PriceCheck,
    PriceCost,
    check_prices,
    price_settings,
)

DEATHS_S = 600
"""Deaths in so many seconds before now are a warning: earlier ones are history, and `contrail events` has them."""
NAMED_MAX = 3
"""Deaths that the sentence tells, the newest; the facts have all."""
PLAYED_MESSAGES_MAX = 10_000
"""Lost cache hits, and the cost of a learned duration, are judged in a copy of at most so many messages: each is some
second, since both play the copy from its first message on."""
CAUSE_SHARE = 0.5
"""One cause with more than this part of all that was lost is a warning."""
CHANGE_SHOWN_MS = 0.05
"""A smaller change of the mean is called none."""
CAUSES = {
    "evicted": ("eviction", BY_SESSION),
    "sent_elsewhere": ("requests that were sent elsewhere", BY_WORKER),
    "worker_lost": ("lost workers", BY_WORKER),
    "replica_behind": ("front ends behind the log", BY_HOUR),
    "unknown": ("missing messages of workers", BY_WORKER),
}
"""By the name of its sum, a cause, and the rows of `contrail cache` that show where it is."""


def check_traffic(copy: NewestCopy, now_ms: int) -> list[Finding]:
    """All checks of this module; one that the copy does not allow is a warning that names the reason. `now_ms` is the
    time by the clock of the log."""
    checks: dict[str, Callable[[], Finding]] = {
        "prefill_price": lambda: _price(copy),
        "deaths": lambda: _deaths(copy, now_ms),
        "cache": lambda: _cache(copy),
    }
    found = []
    for name, check in checks.items():
        try:
            found.append(check())
        except (CallerError, Corrupt, PeerError) as error:
            found.append(Finding(name, WARNING, f"This cannot be judged by the copy of the log: {error}.", {}))
    return found


# --- what prefills are taken to last ---------------------------------------------------------------------------------


def _price(copy: NewestCopy) -> Finding:
    costs = copy.messages <= PLAYED_MESSAGES_MAX
    return check_price(check_prices(copy.recording, copy.from_seq, costs=costs), copy)


def check_price(found: list[PriceCheck], copy: NewestCopy) -> Finding:
    """The learned duration of prefills is near what they take."""
    facts = {"models": [_price_facts(each) for each in found]}
    if not found:
        text = f"In {copy.text}, no decision rests on a learned duration of prefills."
        return Finding("prefill_price", OK, text, facts)
    texts = " ".join(_price_text(each, copy) for each in found)
    status = OK if all(each.in_range for each in found) else WARNING
    return Finding("prefill_price", status, f"In {copy.text}: {texts}", facts)


def _price_facts(found: PriceCheck) -> dict[str, object]:
    return {**msgspec.to_builtins(found), "known": found.known, "in_range": found.in_range}


def _price_text(found: PriceCheck, copy: NewestCopy) -> str:
    beside = "that were alone on their worker" if found.alone else "that had no other prefill beside them"
    if not found.known:
        return (
            f"of {count_text(found.decisions, 'decision')} on {found.model} under a learned duration of prefills, "
            f"{found.samples:,} led to prefills {beside}; {SAMPLES_MIN} are needed to judge it."
        )
    text = (
        f"{found.samples:,} prefills of {found.model} {beside} took {ms_text(found.actual_ms)} in the median, and "
        f"their decisions took them to last {ms_text(found.estimate_ms)}: {_factor_text(found.factor)}"
    )
    if found.near:
        return f"{text}."
    if found.in_range:
        return (
            f"{text}. At the length of whole prompts, {found.decisions - found.beyond:,} of "
            f"{found.decisions:,} decisions are within a factor of {FACTOR_MAX:g}, or too near to matter."
        )
    return f"{text}, which is out of its range. {_remedy(found, copy)}"


def _factor_text(factor: float) -> str:
    """`28.6 times as long`; below 1 to two digits that count."""
    return f"{factor:.1f} times as long" if factor >= 1 else f"{factor:.2g} times as long"


def _remedy(found: PriceCheck, copy: NewestCopy) -> str:
    if found.shown is None:
        return "Longer prompts took no longer here, so no price of a token is shown."
    us = found.shown.per_token_m / 1000
    text = (
        f"They show {us:g} us a token and {ms_text(found.shown.base_us / 1000)} for each prefill; {found.beyond:,} of "
        f"{found.decisions:,} decisions rest on a line that is farther than a factor of {FACTOR_MAX:g} from that."
    )
    settings = price_settings(found.shown)
    if settings is None:
        return text
    if found.cost is not None:
        cost = _cost_text(found.cost)
    else:
        pairs = " ".join(f"--set {key}={value:g}" for key, value in settings.items())
        cost = f"`contrail replay what-if {pairs} --from routing:{copy.from_seq}` says what that costs."
    words = " ".join(f"{key} {value:g}" for key, value in settings.items())
    return (
        f"{text} {cost} `contrail settings set {words}` sets it, for all models; `prefill_us_per_token 0` goes back to "
        "what is learned."
    )


def _cost_text(cost: PriceCost) -> str:
    text = (
        f"Under that line {cost.changed:,} of the newest {count_text(cost.decisions, 'decision')} that could be made "
        f"again {plural(cost.changed, 'falls', 'fall')} otherwise"
    )
    if not cost.is_timed:
        return f"{text}; the log shows no time of a token, so no difference in time is estimated."
    if abs(cost.ttft_change_ms) < CHANGE_SHOWN_MS:
        return f"{text}, and the mean first token of {ms_text(cost.ttft_recorded_ms)} stays as it is, by estimate."
    when = "sooner" if cost.ttft_change_ms < 0 else "later"
    return (
        f"{text}, and the mean first token of {ms_text(cost.ttft_recorded_ms)} comes "
        f"{ms_text(abs(cost.ttft_change_ms))} {when}, by estimate."
    )


# --- workers and front ends that died --------------------------------------------------------------------------------


def _deaths(copy: NewestCopy, now_ms: int) -> Finding:
    from_ms = now_ms - 1000 * DEATHS_S
    return check_deaths(list_deaths(copy.recording, from_ms), now_ms, complete_from_ms(copy.recording))


def check_deaths(found: list[Death], now_ms: int, known_from_ms: int) -> Finding:
    """No worker and no front end was found dead in the last DEATHS_S. `found` are those deaths, in the order of the
    log; before `known_from_ms` not all are known."""
    whole = known_from_ms <= now_ms - 1000 * DEATHS_S
    since = f"in the last {DEATHS_S // 60} minutes"
    if not whole:
        since = f"since {time_text(known_from_ms)}, where the copied part of the log begins"
    facts = {
        "deaths": [
            {**msgspec.to_builtins(death), "ago_s": max(0, now_ms - death.time_ms) / 1000} for death in reversed(found)
        ],
        "within_s": DEATHS_S,
        "known_from_ms": known_from_ms,
    }
    if not found:
        return Finding("deaths", OK, f"No worker and no front end was found dead {since}.", facts)
    texts = [_death_text(death, now_ms) for death in reversed(found[-NAMED_MAX:])]
    if len(found) > NAMED_MAX:
        texts.append(
            f"{len(found) - NAMED_MAX} more died in that time: `contrail events --type WorkerLost --type ReplicaLost` "
            "names them"
        )
    head = f"{count_text(len(found), 'death')} {since}: "
    return Finding("deaths", WARNING, f"{head}{'; '.join(texts)}.", facts)


def _death_text(death: Death, now_ms: int) -> str:
    what, ended = ("worker", "broke off there") if death.kind == WORKER else ("front end", "ended with it")
    back = "no other one of its name has joined"
    if death.back_ms is not None:
        back = f"another one of its name joined {_ago(death.back_ms, now_ms)}"
    return (
        f"{what} {death.name} {_ago(death.time_ms, now_ms)}, found by {death.by} ({death.reason}); "
        f"{count_text(death.attempts, 'attempt')} {ended}, and {back}"
    )


def _ago(time_ms: int, now_ms: int) -> str:
    return f"{seconds_text(max(0, now_ms - time_ms) / 1000)} ago"


# --- lost cache hits -------------------------------------------------------------------------------------------------


def _cache(copy: NewestCopy) -> Finding:
    if copy.messages > PLAYED_MESSAGES_MAX:
        text = (
            f"Lost cache hits are not judged here: that takes {count_text(copy.messages, 'message')}, and doctor reads "
            f"{PLAYED_MESSAGES_MAX:,} at most for it; ask `contrail cache --from routing:{copy.from_seq}`."
        )
        return Finding("cache", OK, text, {"judged": False, "messages": copy.messages})
    return check_cache(cache_losses(copy.recording, copy.from_seq), copy)


def check_cache(found: CacheReport, copy: NewestCopy) -> Finding:
    """No one cause loses most of the cache hits that were available; the sentence is that of `contrail cache`."""
    sums = found.total.sums
    judgement = judge(sums)
    cause = max(CAUSES, key=lambda name: getattr(sums, name))
    lost = getattr(sums, cause)
    warned = judgement.verdict not in {NO_TOKENS, NOTHING, WORKLOAD} and lost > CAUSE_SHARE * sums.lost
    facts = {
        "judged": True,
        "verdict": judgement.verdict,
        "cause": cause if sums.lost else "",
        "from_seq": copy.from_seq,
        "attempts": sums.attempts,
        "history_from_ms": found.history_from_ms,
        **{name: getattr(sums, name) for name in ("prompt_tokens", "achieved", "lost", *CAUSES)},
    }
    text = f"In {copy.text}, by `contrail cache`: {judgement.text}"
    if warned:
        name, by = CAUSES[cause]
        start = "" if copy.is_whole else f" --from routing:{copy.from_seq}"
        text += (
            f" Most of what was lost, {percent_text(lost / sums.lost, 0)}, was lost by {name}: "
            f"`contrail cache --by {by}{start}` says where."
        )
    if found.history_from_ms and sums.prompt_tokens:
        text += (
            f" Caches are known from {time_text(found.history_from_ms)} on: a block that was gone by then counts as "
            "never held."
        )
    return Finding("cache", WARNING if warned else OK, text, facts)
