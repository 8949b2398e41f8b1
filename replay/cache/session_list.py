"""SessionList: the sessions of a recording, each with its turns, its waits and what the cache lost for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from replay.cache.cache_losses import Progress, cache_losses
from replay.cache.cache_report import BY_SESSION, CacheRow, CacheSums, WorstTurn
from replay.cache.session_names import SessionTurn, session_turns
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt


class SlowTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The turn of a session whose client waited longest."""

    request: str
    turn: int
    """Its number in the session, from 1, as `explain --session S --turn N` counts."""
    waited_ms: int
    """For the first token, or in a pause."""


class SessionEntry(msgspec.Struct, kw_only=True):
    """One session, or one talk of a client that names none."""

    name: str
    """The session's key; of a talk, the id of its first request."""
    named: bool
    """True if the client named it."""
    parent: str
    """The session that it is a sub-agent of; empty for none."""
    tenant: str
    model: str
    turns: int = 0
    """Requests; several attempts at one count once."""
    first_ms: int = 0
    """When its first turn came, by the log."""
    last_ms: int = 0
    """When its last turn ended; of one without an end, when it was routed."""
    first_tokens_ms: list[int] = msgspec.field(default_factory=list)
    """Per turn with a first token, from its arrival; ascending."""
    pauses_ms: list[int] = msgspec.field(default_factory=list)
    """Each pause in an answer that went on with another worker, in the order of the log."""
    sums: CacheSums = msgspec.field(default_factory=CacheSums)
    slowest: SlowTurn | None = None
    """None if no turn got a token."""
    worst: WorstTurn | None = None
    """The attempt that lost most; None if it lost nothing."""
    worst_turn: int = 0
    """The number of its turn."""

    @property
    def waited_ms(self) -> int:
        """The longest wait; -1 without a token."""
        return -1 if self.slowest is None else self.slowest.waited_ms

    @property
    def median_ms(self) -> int | None:
        """The first token's median: of an even number of turns, the upper of the two in the middle."""
        return self.first_tokens_ms[len(self.first_tokens_ms) // 2] if self.first_tokens_ms else None


class SessionList(msgspec.Struct, kw_only=True):
    """Sessions, each followed by its sub-agents."""

    sessions: list[SessionEntry]
    depths: list[int]
    """Of each: 0, or one more than that of the session that it is a sub-agent of."""
    total: CacheSums
    """Of all of them."""


def list_sessions(
    recording: Recording,
    start: int = 1,
    end: int | None = None,
    *,
    by_loss: bool = False,
    tenants: Collection[str] = (),
    progress: Progress = lambda _done, _of: None,
) -> SessionList:
    """The sessions with a turn in the routing stream from `start` up to `end` (not included), of these tenants if any
    is named: the longest wait first, or with `by_loss` what lost most. A session stands behind the one that it is a
    sub-agent of, and a family where its first member would. Turns are counted from the recording's start. Corrupt if
    the file is damaged."""
    losses = cache_losses(recording, start, end, by=BY_SESSION, displaced=False, progress=progress)
    rows = {row.name: row for row in losses.rows}
    entries = _entries(session_turns(recording), rows, start, end)
    found = [each for each in entries if not tenants or each.tenant in tenants]
    found.sort(key=lambda each: (-(each.sums.lost if by_loss else each.waited_ms), each.first_ms, each.name))
    total = CacheSums()
    for each in found:
        total.add(each.sums)
    placed = list(_families(found))
    return SessionList(sessions=[entry for entry, _ in placed], depths=[depth for _, depth in placed], total=total)


class _SessionTable:
    """The sessions in the making."""

    def __init__(self, rows: dict[str, CacheRow]) -> None:
        """`rows` has the losses of each session."""
        self._rows = rows
        self.entries: dict[str, SessionEntry] = {}
        self._turns: Counter[str] = Counter()
        self._numbers: dict[tuple[str, str], int] = {}
        """By session and request, the number of its turn: a late attempt may stand behind the next turn."""

    def __repr__(self) -> str:
        return f"<_SessionTable of {len(self.entries)} sessions>"

    def count(self, session: str, attempt: RequestAttempt) -> int:
        """The number of the turn that the attempt belongs to; each attempt is counted once."""
        key = session, attempt.request
        if not attempt.attempt or key not in self._numbers:
            self._turns[session] += not attempt.attempt
            self._numbers[key] = max(1, self._turns[session])
        return self._numbers[key]

    def add(self, it: SessionTurn, number: int) -> None:
        """The attempt, of the turn of this number, is in its session's entry."""
        attempt, arrived_ms = it.attempt, it.attempt.time_ms - it.attempt.before_ms
        entry = self.entries.get(it.session)
        if entry is None:
            row = self._rows.get(it.session, CacheRow(name=it.session))
            entry = self.entries[it.session] = SessionEntry(
                name=it.session, named=bool(attempt.session), parent=it.parent, tenant=attempt.tenant,
                model=attempt.model, first_ms=arrived_ms, sums=row.sums, worst=row.worst,
            )  # fmt: skip
        entry.turns += not attempt.attempt
        entry.last_ms = max(entry.last_ms, attempt.time_ms, arrived_ms + max(0, attempt.duration_ms))
        if entry.worst is not None and (entry.worst.seq, entry.worst.request) == (attempt.seq, attempt.request):
            entry.worst_turn = number
        if attempt.ttft_ms >= 0:
            pauses = attempt.pause_ms >= 0
            waited_ms = attempt.pause_ms if pauses else attempt.ttft_ms
            (entry.pauses_ms if pauses else entry.first_tokens_ms).append(waited_ms)
            if waited_ms > entry.waited_ms:
                entry.slowest = SlowTurn(request=attempt.request, turn=number, waited_ms=waited_ms)


def _entries(
    turns: Iterable[SessionTurn], rows: dict[str, CacheRow], start: int, end: int | None
) -> list[SessionEntry]:
    table = _SessionTable(rows)
    for each in turns:
        number = table.count(each.session, each.attempt)
        if each.attempt.seq >= start and (end is None or each.attempt.seq < end):
            table.add(each, number)
    for entry in table.entries.values():
        entry.first_tokens_ms.sort()
    return list(table.entries.values())


def _families(entries: list[SessionEntry]) -> Iterator[tuple[SessionEntry, int]]:
    """The entries, each behind the one that it is a sub-agent of, with their depths."""
    by_name = {entry.name: entry for entry in entries}
    children: dict[str, list[SessionEntry]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry)
    placed = set[str]()
    for entry in entries:
        waiting = [(_root(entry, by_name), 0)]
        while waiting:
            member, depth = waiting.pop()
            if member.name in placed:
                continue
            placed.add(member.name)
            yield member, depth
            waiting += [(child, depth + 1) for child in reversed(children.get(member.name, ()))]


def _root(entry: SessionEntry, by_name: dict[str, SessionEntry]) -> SessionEntry:
    """The session above all; one that names itself as its own parent, by a circle, ends the way up."""
    seen = {entry.name}
    while entry.parent in by_name and entry.parent not in seen:
        seen.add(entry.parent)
        entry = by_name[entry.parent]
    return entry
