"""Replica status: the state of one front end's fold, as it reports it over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from api.cli.process_query import ProcessReply
from core.event_json import time_text


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's reply, as `contrail replicas --json` shows it; None where the reply has no value."""

    name: str
    id: str
    ops: str
    answered: bool
    why: str = ""
    """Why there is no answer."""
    cursor: dict[str, int] = {}
    """Last sequence applied, by stream."""
    lag_events: int | None = None
    lag_ms: float | None = None
    digest: str | None = None
    """Of all streams at the cursor, 16 hex digits."""
    events_per_s: float | None = None
    rss_bytes: int | None = None
    fold_version: int | None = None
    in_flight: int | None = None
    waiting: int | None = None
    """Requests that wait there for a worker with a free place."""
    incomplete: int | None = None
    """Sources with a gap in their chain that have not restated themselves yet."""
    gaps: int | None = None
    """Gaps found since the replica started."""
    corrupt: int | None = None
    unknown_events: int | None = None
    pending_events: int | None = msgspec.field(default=None, name="ahead")
    """Events of its own that it has not read back yet."""
    settings_revision: int | None = None
    started_from: str | None = None
    """The snapshot that it was restored from; empty if it folded the log from its start."""
    rebuilds: int | None = None
    divergences: int | None = None
    in_flight_damaged: int | None = None
    """Checks that found requests in flight counted wrong; they are counted anew each time."""
    unexplained: int | None = None
    """Differences of which the other replica never said that it was wrong."""
    disputed: int | None = None
    """Streams in which another replica's fold differs, and has not agreed since."""
    log_away_s: float | None = None
    dropped: int | None = None
    """Decisions of its own that are in no log, since it joined."""
    dropped_by_others: dict[str, int] = {}
    """Decisions that other replicas dropped, by their names, as it read in the log."""
    refused_snapshots: tuple[str, ...] = ()
    """Snapshots that it did not start from, each with the reason."""
    losses: tuple[str, ...] = ()
    """Losses of the log that it knows, oldest first, each as a sentence."""
    clock_offset_ms: int | None = None
    """Lead of its host's clock over the broker's; decisions are corrected by it."""
    agrees: bool | None = None
    """With the others, at equal cursors; None if that could not be seen."""

    @property
    def applied(self) -> int:
        """Messages folded, over all streams."""
        return sum(self.cursor.values())

    @property
    def comparable(self) -> bool:
        """True if its digest can be compared: only complete folds have equal digests wherever they began."""
        return self.answered and self.digest is not None and bool(self.cursor) and not self.incomplete


def replica_status(answer: ProcessReply) -> ReplicaStatus:
    """The replica's status from its reply; a value of another type than ours counts as missing."""
    part, state = answer.part, answer.state
    if state is None:
        return ReplicaStatus(name=part.name, id=part.id, ops=part.ops, answered=False, why=answer.why)
    return ReplicaStatus(
        name=part.name,
        id=part.id,
        ops=part.ops,
        answered=True,
        cursor=_cursor(state.get("cursor")),
        digest=_text(state.get("digest")),
        lag_events=_whole(state, "lag_events"),
        lag_ms=_real(state, "lag_ms"),
        events_per_s=_real(state, "events_per_s"),
        rss_bytes=_whole(state, "rss_bytes"),
        fold_version=_whole(state, "fold_version"),
        in_flight=_whole(state, "in_flight"),
        waiting=_whole(_part(state, "admission"), "waiting"),
        incomplete=_whole(state, "incomplete"),
        gaps=_whole(state, "gaps"),
        corrupt=_whole(state, "corrupt"),
        unknown_events=_whole(state, "unknown_events"),
        pending_events=_whole(state, "ahead"),
        settings_revision=_whole(state, "settings_revision"),
        started_from=_text(state.get("started_from")),
        rebuilds=_whole(state, "rebuilds"),
        divergences=_whole(state, "divergences"),
        in_flight_damaged=_whole(state, "in_flight_damaged"),
        unexplained=_whole(_part(state, "agreement"), "unexplained"),
        disputed=_whole(_part(state, "agreement"), "disputed"),
        log_away_s=_real(state, "log_away_s"),
        dropped_by_others=_dropped_by_others(state.get("dropped_in_log")),
        refused_snapshots=_texts(state.get("refused_snapshots")),
        losses=_losses(state.get("losses")),
        dropped=_whole(_part(state, "dropped"), "decisions"),
        clock_offset_ms=_whole(_part(state, "clock"), "offset_ms"),
    )


def _cursor(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {str(stream): seq for stream, seq in value.items() if isinstance(seq, int)}


def _part(state: dict[str, Any], key: str) -> dict[str, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(state: dict[str, Any], key: str) -> int | None:
    """The number, or the length of a list."""
    value = state.get(key)
    if isinstance(value, list | dict):
        return len(value)
    return int(value) if isinstance(value, int | float) else None


def _real(state: dict[str, Any], key: str) -> float | None:
    value = state.get(key)
    return float(value) if isinstance(value, int | float) else None


def _dropped_by_others(value: Any) -> dict[str, int]:
    found = [it for it in value if isinstance(it, dict)] if isinstance(value, list) else []
    return {f"{it.get('name')} ({it.get('replica')})": _whole(it, "decisions") or 0 for it in found}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _losses(value: Any) -> tuple[str, ...]:
    """`STREAM lost history: …, found at TIME` of each."""
    found = [it for it in value if isinstance(it, dict)] if isinstance(value, list) else []
    return tuple(loss_text(str(it.get("text", "")), it.get("at_ms")) for it in found)


def loss_text(text: str, at_ms: Any) -> str:
    """The sentence on a loss, with its time."""
    return f"{text}; found at {time_text(at_ms)}" if isinstance(at_ms, int) else text
