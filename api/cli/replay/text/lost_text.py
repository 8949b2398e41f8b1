"""The answer of `contrail explain REQUEST_ID --lost`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from api.cli.quantities import NONE, count_text, plural
from api.cli.renderer import Notes, Table, Text
from api.cli.replay.text.cache_text import APART, LOSSES, NOT_AVAILABLE
from core.event_json import time_text
from replay.cache.copy_trace import STORED
from replay.cache.prefix_loss import (
    BARRED,
    NOT_USED,
    AttemptLoss,
    BlockShare,
    FoundElsewhere,
    LossRun,
    PrefixLoss,
    StoredBlocks,
)

SHARES_SHOWN = 5
"""Requests named for one part of the prompt."""
RUNS_SHOWN = 12
"""Parts of the prompt with sentences of their own, those with most tokens."""
REASONS = {
    "not_connected": "the front end had no connection to it",
    "suspected": "its lease had vanished",
    "failed": "it had just failed a request",
    "draining": "it was about to leave",
    "not_joined": "no message names it",
}


def lost_text(found: PrefixLoss) -> Text:
    """Each attempt: the sums, the parts of the prompt that were lost, the other choices."""
    for attempt in found.attempts:
        yield from _attempt(found, attempt)
        yield ""
    yield Notes("What this rests on:", _basis(found))


def lost_json(found: PrefixLoss) -> dict[str, Any]:
    """Stable snake_case keys, with a sentence on each attempt; times are in ms since 1970, and 0 for none."""
    attempts = [
        {**msgspec.to_builtins(each), "summary": _summary(each), "choice": _choice(each)} for each in found.attempts
    ]
    return {**msgspec.to_builtins(found), "attempts": attempts}


# --- an attempt --------------------------------------------------------------------------------------------------


def _attempt(found: PrefixLoss, it: AttemptLoss) -> Iterator[str | Table]:
    yield (
        f"{found.request}, attempt {it.attempt}: routing:{it.seq} at {time_text(it.time_ms)}, to {it.worker_name}, "
        f"{count_text(it.prompt_tokens, 'prompt token')} in blocks of {it.block_size}"
    )
    yield from ("", _summary(it), _choice(it), "", _sums(it))
    if it.runs:
        yield from ("", _runs(it.runs), "")
        most = sorted(it.runs, key=lambda run: (-run.tokens, run.first_block))[:RUNS_SHOWN]
        for run in sorted(most, key=lambda run: run.first_block):
            yield from _run_lines(run)


def _summary(it: AttemptLoss) -> str:
    if not it.lost_tokens:
        return "No token that a cache had held was computed: the rest of the prompt was in no cache before."
    most = max(LOSSES, key=lambda name: it.tokens[name])
    share = f"{it.lost_tokens:,} of {count_text(it.prompt_tokens, 'prompt token')}"
    return f"{share} had been in a cache and were computed, most of them ({it.tokens[most]:,}) for: {LOSSES[most]}."


def _choice(it: AttemptLoss) -> str:
    """Another worker at this decision."""
    others = [holder for holder in it.holders if not holder.chosen and not holder.barred]
    most = max((holder.tokens for holder in others), default=0)
    if it.gain_tokens:
        best = next(holder for holder in others if holder.tokens == most)
        return (
            f"Another choice would have found more: {best.worker_name} held {most:,} tokens of the prompt at the "
            f"decision's cursor, {it.gain_tokens:,} more than were cached."
        )
    held = f"no other live worker held more than {most:,} tokens" if most else "no other live worker held any of it"
    return f"No other choice at this decision would have found more: {held}{_barred_text(it.holders, it)}."


def _barred_text(holders: Sequence[FoundElsewhere], it: AttemptLoss) -> str:
    more = [holder for holder in holders if holder.barred and holder.tokens > it.achieved_tokens]
    if not more:
        return ""
    holder = more[0]
    return f", and {holder.worker_name}, with {holder.tokens:,}, could take no request ({_reasons(holder.barred)})"


def _sums(it: AttemptLoss) -> Table:
    rows = [("achieved", it.achieved_tokens)]
    rows += [(text, it.tokens[name]) for name, text in LOSSES.items() if it.tokens[name]]
    rows += [(text, it.tokens[name]) for name, text in NOT_AVAILABLE.items() if it.tokens[name]]
    rows.append(("all prompt tokens", it.prompt_tokens))
    return Table(("", "tokens"), [(text, f"{tokens:,}") for text, tokens in rows], "<>", indent="  ")


# --- parts of the prompt -----------------------------------------------------------------------------------------


def _runs(runs: Sequence[LossRun]) -> Table:
    heads = ("blocks", "tokens", "cause", "worker", "used until", "by", "gone from", "to")
    rows = [
        (
            _blocks(run), f"{run.tokens:,}", run.cause.replace("_", " "), run.worker_name or NONE, _clock(run.used_ms),
            run.used_by or NONE, *((NONE, NONE) if run.how == STORED else (_clock(run.first_ms), _clock(run.last_ms))),
        )
        for run in runs
    ]  # fmt: skip
    return Table(heads, rows, "<><<<<<<", indent="  ")


def _blocks(run: LossRun) -> str:
    last = run.first_block + run.blocks - 1
    return f"{run.first_block:,}" if run.blocks == 1 else f"{run.first_block:,} to {last:,}"


def _clock(time_ms: int) -> str:
    return time_text(time_ms)[11:] if time_ms else NONE


def _run_lines(run: LossRun) -> Iterator[str]:
    yield f"{plural(run.blocks, 'Block')} {_blocks(run)} {plural(run.blocks, 'was', 'were')} {_how(run)}."
    if run.room is not None:
        unknown = f"; {count_text(run.room.unknown, 'block')} by none that the log names, or by none yet"
        yield f"  Their room was taken by {_shares(run.room, unknown)}."
        if free := [share for share in run.room.shares[:SHARES_SHOWN] if share.alternative]:
            named = ", ".join(f"{share.request} ({share.alternative})" for share in free)
            yield f"  Another worker held as much of the prompt of: {named}. Sent there, it would have left this room."
    if run.meanwhile is not None:
        unknown = f"; {count_text(run.meanwhile.unknown, 'block')} by none that the log names"
        blocks = count_text(run.meanwhile.blocks, "block")
        yield f"  Stored there meanwhile, since the last use: {blocks} by {_shares(run.meanwhile, unknown)}."
    if run.earlier:
        copies = ", ".join(f"{each.worker_name} (until {_clock(each.gone_ms)})" for each in run.earlier[:SHARES_SHOWN])
        yield f"  Earlier copies of the first of them were on {copies}."


def _how(run: LossRun) -> str:  # noqa: PLR0911 - a sentence each
    name, used = run.worker_name, ""
    if run.used_ms:
        used = f"last used by {run.used_by} until {_clock(run.used_ms)}, "
    span = _clock(run.first_ms)
    if run.last_ms != run.first_ms:
        span += f" to {_clock(run.last_ms)}"
    match run.how:
        case "removed":
            return f"on {name}, {used}and removed there at {span}"
        case "cleared":
            return f"on {name}, {used}and its cache was emptied or restated without them at {span}"
        case "lost":
            return f"on {name}, {used}and ended with it at {span}"
        case "unknown":
            return f"on {name}, of which messages are missing"
        case _ if run.how == STORED:
            return f"stored on {name} at {span}, which the front end had not read"
        case _ if run.how == NOT_USED:
            return f"held by {name} itself at the decision; its engine did not use them, and the log says no more"
        case _ if run.how == BARRED:
            return f"held by {name} alone, which could take no request: {_reasons(run.reasons)}"
    return f"held by {name} at the decision's cursor, and the request went elsewhere"


def _reasons(reasons: Sequence[str]) -> str:
    return ", ".join(REASONS.get(reason, reason) for reason in reasons)


def _shares(stored: StoredBlocks, unknown: str) -> str:
    shares = stored.shares
    text = count_text(len(shares), "request")
    if shares:
        text += f": {', '.join(map(_share, shares[:SHARES_SHOWN]))}"
    if rest := shares[SHARES_SHOWN:]:
        text += f", and {sum(share.blocks for share in rest):,} by {len(rest):,} more"
    return text + (unknown if stored.unknown else "")


def _share(share: BlockShare) -> str:
    whose = ", same session" if share.same_session else f", tenant {share.tenant}" if share.tenant else ""
    return f"{share.request} ({count_text(share.blocks, 'block')}{whose})"


def _basis(found: PrefixLoss) -> Iterator[str]:
    yield "Causes are those of `contrail cache`, judged at the decision's cursor."
    yield (
        "The log does not name the cause of a removal. By the rule of this command the room of the block that was "
        "removed first goes to the block that is stored next on that worker."
    )
    yield (
        "A copy was used until the last request that was sent there with it ended, or was sent, if it had not ended "
        "at the removal."
    )
    for reason, count in found.apart.items():
        yield f"{count_text(count, 'attempt')} {APART[reason]}: not judged."
    if found.history_from_ms:
        yield f"The log begins at {time_text(found.history_from_ms)}: blocks that had gone before count as cold."
    if found.gaps:
        yield f"{count_text(found.gaps, 'gap')} in the log {plural(found.gaps, 'hides', 'hide')} messages."
    if found.forgotten:
        yield f"Not exact: {count_text(found.forgotten, 'block')} beyond the bound of memory were forgotten."
