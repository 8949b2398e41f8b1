"""The report of `contrail sessions`, as a table with a sentence and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from api.cli.quantities import NONE, count_text, ms_text, percent_text, plural, seconds_text
from api.cli.renderer import Notes, Table, Text
from api.cli.replay.text.cache_text import HEADS, LOSSES
from replay.cache.cache_report import CacheSums
from replay.cache.judgement import judge
from replay.cache.session_list import SessionEntry, SessionList

SLOWEST, LOST = "slowest", "lost"
BASIS = (
    "First tokens count from the request's arrival; a pause is a gap in an answer that went on with another worker.",
    "Lost are prompt tokens that a cache had held before and that were computed, by the causes of `contrail cache`.",
    "A talk without a name of its client's has the id of its first request in this log.",
    "`contrail explain --session NAME --turn N` explains a turn.",
)


def sessions_text(found: SessionList, limit: int, *, by_loss: bool) -> Text:
    """The table, then a sentence, then notes on the basis. At most `limit` sessions are shown."""
    shown = found.sessions[:limit]
    causes = [name for name in LOSSES if getattr(found.total, name)]
    heads = ["session", "tenant", "model", "turns", "p50 ms", "worst ms", "pauses", "time", "lost"]
    heads += [*map(HEADS.__getitem__, causes), "worst turn"]
    rows = [_row(*each, causes, by_loss=by_loss) for each in zip(shown, found.depths[:limit], strict=True)]
    yield f"{count_text(len(found.sessions), 'session')} with {count_text(_turns(found), 'turn')}"
    yield ""
    yield Table(heads, rows, f"<<<{'>' * (len(heads) - 4)}<")
    if len(found.sessions) > limit:
        yield f"{limit:,} of {len(found.sessions):,} shown; --limit N shows more"
    yield from ("", sentence(found, by_loss=by_loss))
    yield from ("", Notes("What this rests on:", BASIS))


def _row(entry: SessionEntry, depth: int, causes: list[str], *, by_loss: bool) -> list[str]:
    first = entry.first_tokens_ms
    turn = NONE
    if by_loss and entry.worst is not None:
        turn = f"{entry.worst_turn}: {entry.worst.request} ({entry.worst.lost:,})"
    elif not by_loss and entry.slowest is not None:
        turn = f"{entry.slowest.turn}: {entry.slowest.request} ({ms_text(entry.slowest.waited_ms)})"
    pauses = f"{len(entry.pauses_ms)}" if entry.pauses_ms else NONE
    return [
        f"{'  ' * depth}{entry.name}",
        entry.tenant or NONE,
        entry.model,
        f"{entry.turns:,}",
        f"{entry.median_ms:,}" if first else NONE,
        f"{first[-1]:,}" if first else NONE,
        pauses,
        seconds_text((entry.last_ms - entry.first_ms) / 1000),
        f"{entry.sums.lost:,}",
        *(f"{getattr(entry.sums, name):,}" for name in causes),
        turn,
    ]


def _turns(found: SessionList) -> int:
    return sum(each.turns for each in found.sessions)


def sentence(found: SessionList, *, by_loss: bool) -> str:
    """One sentence: how far few sessions account for all of it."""
    return _loss_sentence(found) if by_loss else _wait_sentence(found)


def _wait_sentence(found: SessionList) -> str:
    answered = [each for each in found.sessions if each.slowest is not None]
    slowest = max(answered, key=lambda each: each.waited_ms, default=None)
    if slowest is None or slowest.slowest is None:
        return "No turn in this range got a token."
    firsts = sorted(ms for each in answered for ms in each.first_tokens_ms)
    usual = f", where half of all first tokens took at most {ms_text(firsts[(len(firsts) - 1) // 2])}" if firsts else ""
    paused = sum(bool(each.pauses_ms) for each in answered)
    pauses = f"; {count_text(paused, 'session')} {plural(paused, 'has', 'have')} pauses" if paused else ""
    return (
        f"The longest wait was {ms_text(slowest.waited_ms)}, in turn {slowest.slowest.turn} of {slowest.name}"
        f"{usual}{pauses}."
    )


def _loss_sentence(found: SessionList) -> str:
    lost = sorted((each.sums.lost for each in found.sessions if each.sums.lost), reverse=True)
    if not lost:
        return judge(found.total).text
    half, few = 0, 0
    while 2 * half < found.total.lost:
        half += lost[few]
        few += 1
    share = percent_text(half / found.total.lost)
    of = f"{few:,} of {count_text(len(found.sessions), 'session')} lost {share} of all that was lost"
    return f"{of}. {judge(found.total).text}"


def sessions_json(found: SessionList, limit: int, *, by_loss: bool) -> dict[str, Any]:
    """Stable snake_case keys; times in milliseconds, losses in tokens. At most `limit` sessions."""
    shown = zip(found.sessions[:limit], found.depths[:limit], strict=True)
    return {
        "order": LOST if by_loss else SLOWEST,
        "text": sentence(found, by_loss=by_loss),
        "sessions": [_entry_json(entry, depth) for entry, depth in shown],
        "sessions_total": len(found.sessions),
        "turns_total": _turns(found),
        "lost": _lost_json(found.total),
    }


def _entry_json(entry: SessionEntry, depth: int) -> dict[str, Any]:
    first = entry.first_tokens_ms
    worst = None if entry.worst is None else {**msgspec.structs.asdict(entry.worst), "turn": entry.worst_turn}
    return {
        "session": entry.name,
        "named": entry.named,
        "parent": entry.parent or None,
        "depth": depth,
        "tenant": entry.tenant,
        "model": entry.model,
        "turns": entry.turns,
        "first_ms": entry.first_ms,
        "last_ms": entry.last_ms,
        "first_token_p50_ms": entry.median_ms,
        "first_token_worst_ms": first[-1] if first else None,
        "pauses": len(entry.pauses_ms),
        "pause_ms": sum(entry.pauses_ms),
        "prompt_tokens": entry.sums.prompt_tokens,
        "lost_tokens": entry.sums.lost,
        "lost": _lost_json(entry.sums),
        "slowest_turn": None if entry.slowest is None else msgspec.structs.asdict(entry.slowest),
        "worst_turn": worst,
    }


def _lost_json(sums: CacheSums) -> dict[str, int]:
    return {name: getattr(sums, name) for name in LOSSES}
