"""The report of `contrail cache`, as tables with one sentence of judgement and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.cli.quantities import NONE, count_text, percent_text, plural
from api.cli.renderer import Notes, Table, Text
from core.event_json import time_text
from replay.cache.cache_report import (
    BY_CAUSE,
    BY_HOUR,
    DECLINED,
    NO_TOKEN,
    NOT_COUNTED,
    REMOTE,
    UNDER_WAY,
    UNREAD,
    WORKER_LOST,
    CacheReport,
    CacheRow,
    CacheSums,
    DisplacementRemainder,
)
from replay.cache.displacement import DisplacedTokens
from replay.cache.judgement import MARGIN, PUSHED_MARGIN, judge, judge_displacement

LOSSES = {
    "sent_elsewhere": "sent elsewhere though a live worker held it",
    "replica_behind": "replica behind the log",
    "evicted": "evicted",
    "worker_lost": "worker lost",
    "unknown": "in a cache of which messages are missing",
}
NOT_AVAILABLE = {
    "not_yet_stored": "not yet stored when asked for",
    "cold": "cold: no earlier request had it",
    "always_computed": "behind the last block that a cache can give",
}
HEADS = {
    "sent_elsewhere": "elsewhere",
    "replica_behind": "behind",
    "evicted": "evicted",
    "worker_lost": "worker lost",
    "unknown": "unknown",
    "not_yet_stored": "not yet",
    "cold": "cold",
    "always_computed": "rest",
}
"""The same as heads of columns."""
APART = {
    DECLINED: "declined by the worker, and decided again",
    WORKER_LOST: "lost with the worker before the first token",
    NO_TOKEN: "ended without a token",
    UNDER_WAY: "without a first token when the log ends",
    REMOTE: "computed by a prefill worker",
    UNREAD: "with a prompt or a view that the log does not have",
    NOT_COUNTED: "of engines that do not say how much their caches had",
}
OPTIONAL = ("unknown",)
"""Columns and rows that are shown only with tokens in them."""
DIGITS = 2


# --- text --------------------------------------------------------------------------------------------------------


def cache_text(found: CacheReport, limit: int) -> Text:
    """The table, then the judgement, then notes on the basis. At most `limit` groups are shown."""
    sums = found.total.sums
    tokens = count_text(sums.prompt_tokens, "prompt token")
    yield f"{count_text(sums.attempts, 'attempt')} with {tokens}, from {_span(found)}"
    yield ""
    if found.by == BY_CAUSE:
        yield _causes(sums)
    else:
        yield _groups(found, limit)
        if len(found.rows) > limit:
            yield f"{limit:,} of {len(found.rows):,} shown; --limit N shows more"
        yield "Percent of the prompt tokens of the row; the worst turn with the tokens that it lost."
    if found.total.displaced is not None:
        yield from ("", "Tokens of blocks that workers removed, by the blocks that took their room:")
        yield _displaced(found, found.total.displaced, limit)
    yield from ("", judge(sums).text)
    if (pushed := judge_displacement(found)) is not None:
        yield pushed.text
    if (worst := found.total.worst) is not None:
        yield (
            f"Most was lost by {worst.request} (attempt {worst.attempt}, routing:{worst.seq}): "
            f"{count_text(worst.lost, 'token')}."
        )
    yield from ("", Notes("What this rests on:", _basis(found)))


def _span(found: CacheReport) -> str:
    return f"{time_text(found.first_ms)} to {time_text(found.last_ms)}"


def _causes(sums: CacheSums) -> Table:
    rows = [("available", sums.available), ("  achieved", sums.achieved)]
    rows += [(f"  {text}", getattr(sums, name)) for name, text in LOSSES.items() if _is_shown(name, sums)]
    rows.append(("not available", sums.not_available))
    rows += [(f"  {text}", getattr(sums, name)) for name, text in NOT_AVAILABLE.items()]
    rows.append(("all prompt tokens", sums.prompt_tokens))
    shown = [(text, percent_text(tokens / sums.prompt_tokens, DIGITS), f"{tokens:,}") for text, tokens in rows]
    return Table(("", "share", "tokens"), shown, "<>>")


def _is_shown(name: str, sums: CacheSums) -> bool:
    return name not in OPTIONAL or bool(getattr(sums, name))


def _groups(found: CacheReport, limit: int) -> Table:
    names = [name for name in HEADS if _is_shown(name, found.total.sums)]
    heads = [found.by, "attempts", "tokens", "available", "achieved", *map(HEADS.__getitem__, names), "worst turn"]
    rows = [_group(found, row, names) for row in found.rows[:limit]]
    rows.append(_group(found, msgspec.structs.replace(found.total, name="all", worst=None), names))
    return Table(heads, rows, f"<{'>' * (len(heads) - 2)}<")


def _group(found: CacheReport, row: CacheRow, names: list[str]) -> list[str]:
    sums, worst = row.sums, row.worst
    name = f"{row.name[:16]}Z" if found.by == BY_HOUR and len(row.name) > len("all") else row.name or NONE
    turn = f"{worst.request} ({worst.lost:,})" if worst is not None else NONE
    shares = [sums.available, sums.achieved, *(getattr(sums, each) for each in names)]
    texts = [f"{100 * tokens / sums.prompt_tokens:.{DIGITS}f}" for tokens in shares]
    return [name, f"{sums.attempts:,}", f"{sums.prompt_tokens:,}", *texts, turn]


def _displaced(found: CacheReport, total: DisplacedTokens, limit: int) -> Table:
    """Of the rows that are shown, and of all."""
    heads = (found.by, "lost to others", "to its own", "to unknown", "took from others", "from unknown")
    rows = [(row.name or NONE, row.displaced) for row in found.rows[:limit] if row.displaced is not None]
    shown = [
        (name, *(f"{tokens:,}" for tokens in msgspec.structs.astuple(each))) for name, each in (*rows, ("all", total))
    ]
    return Table(heads, shown, "<>>>>>")


def _displacement_basis(rest: DisplacementRemainder) -> Iterator[str]:
    yield (
        "A removed block is lost to its last user there; its room is taken by the block that is stored next on that "
        "worker, the block that was removed first giving its room first. Room that is still empty is lost to unknown."
    )
    if rest.lost_unowned:
        yield f"{count_text(rest.lost_unowned, 'token')} of removed blocks had no user in the log."
    if any(msgspec.structs.astuple(rest.unlisted)):
        yield "Groups without an attempt that counts are in no row, and in the sum of all."
    if rest.forgotten:
        yield f"The last users of {count_text(rest.forgotten, 'block')} were forgotten, beyond the bound of memory."


def _basis(found: CacheReport) -> Iterator[str]:
    yield "Achieved are whole blocks that the engines say they took from their caches."
    yield (
        "Each block has the first cause that holds at the decision's cursor; a block that the chosen worker held "
        "there and computed all the same counts as evicted."
    )
    yield f"With less than {percent_text(MARGIN)} of the prompt tokens between the two, nothing is to be won."
    yield from (f"{text[0].upper()}{text[1:]}: in no sum." for text in apart_text(found))
    if found.remainder is not None:
        yield from _displacement_basis(found.remainder)
    if found.exact:
        yield f"Exact: no more than {found.blocks_max:,} blocks were out of all caches at once, and each is remembered."
    else:
        yield (
            f"Not exact: {count_text(found.forgotten, 'block')} beyond {found.blocks_max:,} that were out of all "
            "caches were forgotten, those that went first; a request for such a block counts as cold. Ask about a "
            "shorter part of the log, made by `contrail export`."
        )
    if found.history_from_ms:
        since = time_text(found.history_from_ms)
        yield f"Blocks that had gone before {since} are not known, and count as cold: the log does not go further back."
    if found.gaps:
        gaps = f"{count_text(found.gaps, 'gap')} in the log"
        yield f"{gaps} {plural(found.gaps, 'hides', 'hide')} stores: blocks of these stores alone count as cold."


def apart_text(found: CacheReport) -> list[str]:
    """The attempts that are in no sum, by their reasons, as phrases."""
    return [f"{count_text(count, 'attempt')} {APART[reason]}" for reason, count in found.apart.items()]


# --- JSON --------------------------------------------------------------------------------------------------------


def cache_json(found: CacheReport, limit: int) -> dict[str, Any]:
    """Stable snake_case keys; tokens are whole numbers, shares lie between 0 and 1. At most `limit` rows."""
    judgement = judge(found.total.sums)
    return {
        "by": found.by,
        "judgement": {"verdict": judgement.verdict, "text": judgement.text, "margin": MARGIN},
        "displacement": _displacement_json(found),
        "total": _row_json(found.total),
        "rows": [{"name": row.name, **_row_json(row)} for row in found.rows[:limit]],
        "rows_total": len(found.rows),
        "apart": found.apart,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "history_from_ms": found.history_from_ms or None,
        "gaps": found.gaps,
        "exact": found.exact,
        "blocks_max": found.blocks_max,
        "forgotten_blocks": found.forgotten,
    }


def _displacement_json(found: CacheReport) -> dict[str, Any] | None:
    """The parts that stand in no row, and of a report by tenant the judgement."""
    rest, judged = found.remainder, judge_displacement(found)
    if rest is None:
        return None
    return {
        "judgement": None if judged is None else {**msgspec.structs.asdict(judged), "margin": PUSHED_MARGIN},
        "unlisted_tokens": msgspec.structs.asdict(rest.unlisted),
        "lost_unowned_tokens": rest.lost_unowned,
        "forgotten_blocks": rest.forgotten,
    }


def _row_json(row: CacheRow) -> dict[str, Any]:
    sums = row.sums
    return {
        "attempts": sums.attempts,
        "prompt_tokens": sums.prompt_tokens,
        "available_tokens": sums.available,
        "available_share": sums.available / sums.prompt_tokens,
        "achieved_tokens": sums.achieved,
        "achieved_share": sums.achieved / sums.prompt_tokens,
        "lost_tokens": sums.lost,
        "lost": {name: getattr(sums, name) for name in LOSSES},
        "not_available_tokens": sums.not_available,
        "not_available": {name: getattr(sums, name) for name in NOT_AVAILABLE},
        "worst_turn": None if row.worst is None else msgspec.structs.asdict(row.worst),
        "displaced_tokens": None if row.displaced is None else msgspec.structs.asdict(row.displaced),
    }
