"""RequestHistory: every attempt at every request in the routing stream, in columns, in the order of the log.

`explain`, `state-at`, `what-if`, `bisect`, the closed loop and the page all ask it about requests. An event is named by
its number: the sequence of its message, times PLACES, plus its place in the message. So every reader of one log gives
an attempt the same number, that of the event that routed it, and numbers are in the order of the log.

One thread reads; others may look at the columns at any time: `read_to` moves when a message's attempts are all there.
Some 1.5 us per event, the decoding included.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from core.errors import CallerError
from core.events import RequestFinished, RequestPrefilled, compact_decision, compact_progress
from core.events.routing import CACHED_UNKNOWN
from core.ids import LOST_SUFFIX, SUFFIX_CHARS, given_id
from replay.recording.messages import (
    FREQUENT_FORMS,
    UNREADABLE,
    DecisionFields,
    FinishedFields,
    PartialEvent,
    PrefilledFields,
    QueuedFields,
    RoutedFields,
    Row,
    decode_any,
    decode_decision,
    decode_finished,
    decode_frequent,
    decode_prefilled,
)
from replay.recording.request_names import is_part, only_one, possible_ids

PLACES = 10_000
"""More events than a message can hold."""
NEVER = 1 << 62
"""The number of an event that does not come."""
UNDER_WAY = -1
DECLINED, GONE = "declined", "replica_gone"
"""Outcomes: the worker did not begin with the attempt; its replica ended before it."""
TRIED_AGAIN = frozenset({DECLINED, "worker_lost"})
"""Outcomes behind which another attempt may come."""

COURSE = compact_decision.COMPACT_TYPES | {
    "RequestRouted",
    "RequestQueued",
    "RequestPrefilled",
    "RequestFinished",
    compact_progress.COMPACT_PREFILLED,
    compact_progress.COMPACT_FINISHED,
}
"""Events that tell of an attempt's course, and of nothing else."""
_DECISION, _FIRST_TOKEN = (RoutedFields, DecisionFields), (PrefilledFields, RequestPrefilled)
"""The frequent events by their fields, in all versions; ends are the others."""
COLUMNS = (
    "n", "ms", "worker", "replica", "attempt", "prompt_tokens", "predicted", "before_ms", "waited_ms", "cached",
    "ttft_ms", "duration_ms", "outcome", "model", "now_ms", "blocks", "prefill_tokens", "output_tokens",
    "prefilled_n", "prefilled_ms", "ended_n",
)  # fmt: skip
"""`ms`: when the log stored the decision, never before an earlier one; `before_ms`: how long before the decision the
request came, from when `ttft_ms` and `duration_ms` count; `waited_ms`: the same if it was in its replica all that time,
held or waiting, and 0 if another worker had it; `now_ms`: the replica's clock at the decision; `prefilled_n`,
`ended_n`: the events of its first token and of its end, 0 without one. An attempt also ends when a restatement does not
name it, when its replica ends, and when its id is used again: then it has no outcome, or GONE."""


class RequestAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt at a request, or its refusal, by the log."""

    request: str
    attempt: int
    replica: str
    model: str
    at: int
    """The number of the event that routed it, or refused it."""
    time_ms: int
    """When the log stored that."""
    worker: str = ""
    """Empty for a refusal."""
    tenant: str = ""
    """Empty if it had none, or was refused."""
    session: str = ""
    """The session's key; empty if it named none, or was refused."""
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    blocks: int = 0
    """That it took there."""
    prefill_tokens: int = 0
    """That the worker was expected to compute."""
    now_ms: int = 0
    """The clock of its replica at the decision."""
    before_ms: int = 0
    """The time from the request's arrival to the decision."""
    status: int = 0
    """The HTTP status of a refusal."""
    turned_away: bool = False
    """True for a refusal without a decision."""
    queued_seq: int = 0
    """Of the first message that says that it had to wait before; 0 if it had not …"""
    held_seq: int = 0
    """… and of the last: it may have waited for a place, and then have been held for its worker."""
    migrated_seq: int = 0
    """Of the message that says from where it goes on; 0 if it does not."""
    prefilled_at: int = 0
    """The number of the event of its first token; 0 without one."""
    prefilled_ms: int = 0
    """When the log stored that."""
    cached_tokens: int = CACHED_UNKNOWN
    """As its engine said; CACHED_UNKNOWN before its first token, too."""
    ttft_ms: int = -1
    """From the request's arrival."""
    begun_ms: int = -1
    """Of an attempt that goes on with an answer: when the earlier attempt made the request's first token, from the
    arrival; -1 for others …"""
    broke_ms: int = -1
    """… and when the last attempt that made a token broke off."""
    remote: bool = False
    """True if a prefill worker computed the prompt."""
    ended_at: int = 0
    """The number of the event that ended it; 0 while it is under way."""
    void_ms: int = 0
    """When the log stored the event that ended it, if that was not its own end; else 0."""
    duration_ms: int = -1
    output_tokens: int = 0
    outcome: str = ""
    """GONE if its replica ended first; empty if nothing tells its end."""

    @property
    def seq(self) -> int:
        """Of the message that routed it, or refused it."""
        return self.at // PLACES

    @property
    def prefilled_seq(self) -> int:
        """Of the message of its first token; 0 without one."""
        return self.prefilled_at // PLACES

    @property
    def ended_seq(self) -> int:
        """Of the message of its own end; 0 if nothing tells it."""
        return 0 if self.outcome in {"", GONE} else self.ended_at // PLACES

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that its engine took from its cache: as the engine said, or else as was predicted."""
        return self.predicted_tokens if self.cached_tokens == CACHED_UNKNOWN else self.cached_tokens

    @property
    def first_token_ms(self) -> int:
        """From the request's arrival to its first token, whichever attempt made it; -1 if there is none yet."""
        return self.ttft_ms if self.begun_ms < 0 else self.begun_ms

    @property
    def pause_ms(self) -> int:
        """Of an attempt that goes on with an answer: from when the one before broke off to its own first token; -1 for
        others, and before that token."""
        return -1 if self.begun_ms < 0 or self.ttft_ms < 0 else max(0, self.ttft_ms - self.broke_ms)

    @property
    def declined(self) -> bool:
        """True if its worker did not begin with it."""
        return self.outcome == DECLINED


class Numbering(dict[str, int]):
    """Numbers of names, in the order in which the names come."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, name: str) -> int:
        self.names.append(name)
        number = self[name] = len(self.names) - 1
        return number


def several_tenants(request: str, tenants: Iterable[str]) -> CallerError:
    """The error for an id that requests of several tenants have, if none of these is named."""
    names = ", ".join(each or "'' for none" for each in tenants)
    return CallerError(
        f"several tenants have requests with the id {request!r}: name one by --tenant ({names}); "
        "for a moment, give the sequence of its decision, such as routing:12"
    )


class OtherEvent(NamedTuple):
    """An event of the routing stream that does not tell of an attempt's course, or also tells of something else."""

    seq: int
    ms: int
    replica: str
    event: PartialEvent


class _Wait(NamedTuple):
    since_ms: int
    """By the replica's clock."""
    first_seq: int
    last_seq: int


class _PriorAttempt(NamedTuple):
    """An attempt behind which another one may come."""

    attempt: int
    arrived_ms: int
    """The time of the request's arrival, by the log's clock."""
    declined: bool
    """True if the request was in its replica all the time, since the worker did not begin with it."""
    begun_ms: int
    """When the request's first token came, from its arrival; -1 if none has come."""
    broke_ms: int
    """When the last attempt that made a token ended, from the arrival."""


_Key = tuple[str, int, int]
"""A request, its attempt, and the number of the replica that it came to: clients may give two requests one id."""
_Place = tuple[str, int]
"""A request, and the number of the replica that it came to."""


class RequestHistory:
    """Attempts in columns, a row each, and refusals beside them."""

    def __init__(  # noqa: PLR0915  # it makes each column
        self, workers: Numbering | None = None, replicas: Numbering | None = None
    ) -> None:
        """The numbers of workers and replicas in the columns are of these numberings."""
        self.workers = Numbering() if workers is None else workers
        self.replicas = Numbering() if replicas is None else replicas
        self.models, self.outcomes = Numbering(), Numbering()
        self.read_to = 0
        """Every message of the routing stream up to this sequence is in here."""
        self.requests: list[str] = []
        """The ids, beside the columns."""
        self.refusals: list[RequestAttempt] = []
        """Requests that no worker got, in the order of the log."""
        self.first_seqs: dict[str, int] = {}
        """By replica, its first message."""
        self.missing: dict[str, list[int]] = {}
        """By replica, its messages before which others of it are missing …"""
        self.restated: dict[str, list[int]] = {}
        """… and the numbers of its restatements."""
        self.watched = 0
        """Changes of the attempts before this row are listed in `changed`."""
        self.changed, self.changed_seqs = array("q"), array("q")
        """Rows, and the messages that changed them."""
        self.columns = {name: array("q") for name in COLUMNS}
        self._append = [column.append for column in self.columns.values()]
        later = ("cached", "ttft_ms", "duration_ms", "outcome", "output_tokens")
        self._cached, self._ttft_ms, self._duration_ms, self._outcome, self._output_tokens = map(
            self.columns.__getitem__, later
        )
        ends = ("prefilled_n", "prefilled_ms", "ended_n")
        self._prefilled_n, self._prefilled_ms, self._ended_n = map(self.columns.__getitem__, ends)
        self._stored_ms: dict[int, int] = {}
        """By row, as are the next; of attempts that the log stored under an earlier time than one before."""
        self._void_ms: dict[int, int] = {}
        self._tenants: dict[int, str] = {}
        self.sessions = Numbering()
        self._sessions: dict[int, int] = {}
        self._waits: dict[int, _Wait] = {}
        self._migrated: dict[int, int] = {}
        self._prior_of: dict[int, _PriorAttempt] = {}
        """By row, the attempt before it."""
        self._remote: set[int] = set()
        self._delays: dict[_Place, list[int]] = {}
        """The events that say that a client took an answer late."""
        self._open: dict[_Key, int] = {}
        self._waiting: dict[_Place, _Wait] = {}
        self._moved: dict[_Key, int] = {}
        self._prior: dict[_Place, _PriorAttempt] = {}
        self._next: dict[str, int] = {}
        """By replica, the number of its next message."""
        self._last_ms = 0
        self._rows: dict[str, list[int]] = {}
        self._refused: dict[str, list[RequestAttempt]] = {}
        self._renamed: dict[str, dict[str, None]] = {}
        """By the id that clients gave, the ids that replicas made of it for further requests at once."""
        self._indexed = self._indexed_refusals = 0

    def __repr__(self) -> str:
        return f"<RequestHistory of {len(self)} attempts, {len(self._open)} under way>"

    def __len__(self) -> int:
        return len(self.requests)

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, rows: Iterable[Row]) -> Iterator[OtherEvent]:
        """The next messages of the routing stream are in here, once the result is gone through; it has what else they
        say. What is no message of its replica, and a message that comes again, is passed over."""
        replicas, following = self.replicas, self._next
        routed, prefilled, finished = self._routed, self._prefilled, self._finished
        for seq, ms, about, payload in rows:
            try:
                message = decode_frequent(payload)
            except UNREADABLE:
                yield from self._read_any(seq, ms, about, payload)
            else:
                n = message.n
                if message.source == about and (following.get(about) == n or self._goes_on(about, n, seq)):
                    following[about] = n + 1
                    replica, number = replicas[about], seq * PLACES
                    for event in message.events:
                        fields: Any = event.event if type(event) in FREQUENT_FORMS else event  # type: ignore[union-attr]
                        if isinstance(fields, _DECISION):
                            routed(number, ms, replica, fields)
                        elif isinstance(fields, _FIRST_TOKEN):
                            prefilled(number, ms, replica, fields)
                        elif isinstance(fields, QueuedFields):
                            self._queued(seq, replica, fields)
                        else:
                            finished(number, replica, fields)
                        number += 1
            self.read_to = seq

    def _goes_on(self, about: str, n: int, seq: int) -> bool:
        """True if this is a new message of the replica, not a repeated one."""
        expected = self._next.get(about)
        if expected is None:
            self.first_seqs[about] = seq
        elif n > expected:
            self.missing.setdefault(about, []).append(seq)
        return expected is None or n >= expected

    def _read_any(self, seq: int, ms: int, about: str, payload: bytes) -> Iterator[OtherEvent]:
        message = decode_any(payload)
        if message is None:
            return
        if message.source == about and self._goes_on(about, message.n, seq):
            self._next[about] = message.n + 1
            replica = self.replicas[about]
            for number, event in enumerate(message.events, seq * PLACES):
                self._on_event(number, ms, replica, event)
                if event.type not in COURSE:
                    yield OtherEvent(seq, ms, about, event)
        elif message.source == about + LOST_SUFFIX:
            for number, event in enumerate(message.events, seq * PLACES):
                if event.type == "ReplicaLost":
                    self._gone(number, ms, self.replicas[about])
                    yield OtherEvent(seq, ms, about, event)

    def _on_event(self, number: int, ms: int, replica: int, event: PartialEvent) -> None:
        match event.type:
            case "RequestRouted" | compact_decision.COMPACT_DECISION | compact_decision.SHORT_DECISION:
                self._routed_any(number, ms, replica, event)
            case "RequestQueued":
                self._queued(number // PLACES, replica, QueuedFields(event.request, event.now_ms))
            case "RequestPrefilled" | compact_progress.COMPACT_PREFILLED:
                self._prefilled_any(number, ms, replica, event)
            case "RequestFinished" | compact_progress.COMPACT_FINISHED:
                self._finished_any(number, replica, event)
            case "RequestRejected":
                self._reject(number, ms, replica, event, event.attempt)
            case "RequestTurnedAway":
                self._turn_away(number, ms, replica, event)
            case "RequestMigrated" | "AnswerDelayed":
                self._follow_up(number, replica, event)
            case "ReplicaRestated":
                self._restate(number, ms, replica, event)
            case "ReplicaLeft":
                self._gone(number, ms, replica)
            case _:
                pass  # concerns no request

    def _follow_up(self, number: int, replica: int, event: PartialEvent) -> None:
        """An attempt goes on with an answer, or a client took its answer late."""
        if event.type == "RequestMigrated":
            self._moved[event.request, event.attempt, replica] = number // PLACES
        else:
            self._delays.setdefault((event.request, replica), []).append(number)

    def _routed_any(self, number: int, ms: int, replica: int, event: PartialEvent) -> None:
        """A decision of any version counts, if it can be read."""
        with suppress(*UNREADABLE):
            self._routed(number, ms, replica, _routed_fields(event))

    def _prefilled_any(self, number: int, ms: int, replica: int, event: PartialEvent) -> None:
        """The same of a first token …"""
        with suppress(*UNREADABLE):
            self._prefilled(number, ms, replica, _prefilled_fields(event))

    def _finished_any(self, number: int, replica: int, event: PartialEvent) -> None:
        """… and of an end."""
        with suppress(*UNREADABLE):
            self._finished(number, replica, _finished_fields(event))

    def _routed(self, number: int, ms: int, replica: int, event: RoutedFields) -> None:
        request, attempt, row = event.request, event.attempt, len(self.requests)
        if ms < self._last_ms:  # the log's clock may go back
            self._stored_ms[row], ms = ms, self._last_ms
        self._last_ms = ms
        before_ms = waited_ms = 0
        wait = self._waiting.pop((request, replica), None) if self._waiting else None
        if attempt:
            prior = self._prior.pop((request, replica), None)
            if prior is not None:
                before_ms = ms - prior.arrived_ms
                waited_ms = before_ms if prior.declined else 0
                self._prior_of[row] = prior
            if self._moved and (moved := self._moved.pop((request, attempt, replica), 0)):
                self._migrated[row] = moved
        elif wait is not None:
            before_ms = waited_ms = max(0, event.now_ms - wait.since_ms)
            self._waits[row] = wait
        values = (
            number, ms, self.workers[event.worker], replica, attempt, event.prompt_tokens,
            event.predicted_cached_tokens, before_ms, waited_ms, -1,
            -1, -1, UNDER_WAY, self.models[event.model], event.now_ms, event.blocks, event.prefill_tokens, 0,
            0, 0, 0,
        )  # fmt: skip
        for append, value in zip(self._append, values):  # noqa: B905 - a row has all columns, and this is the hot loop
            append(value)
        if event.tenant:
            self._tenants[row] = event.tenant
        if event.session:
            self._sessions[row] = self.sessions[event.session]
        key = request, attempt, replica
        before = self._open.setdefault(key, row)
        if before != row:
            self._void(before, number, ms)
            self._open[key] = row
        self.requests.append(request)

    def _queued(self, seq: int, replica: int, event: QueuedFields) -> None:
        place = event.request, replica
        wait = self._waiting.get(place)
        self._waiting[place] = _Wait(event.now_ms, seq, seq) if wait is None else wait._replace(last_seq=seq)

    def _prefilled(self, number: int, ms: int, replica: int, event: PrefilledFields | RequestPrefilled) -> None:
        row = self._open.get((event.request, event.attempt, replica))
        if row is None:
            return
        self._cached[row], self._ttft_ms[row] = event.cached_tokens, event.ttft_ms
        self._prefilled_n[row], self._prefilled_ms[row] = number, ms
        if event.prefill is not None and event.prefill.remote:
            self._remote.add(row)
        if row < self.watched:
            self._note_change(number, row)

    def _finished(self, number: int, replica: int, event: FinishedFields | RequestFinished) -> None:
        row = self._open.pop((event.request, event.attempt, replica), None)
        if row is None:
            return
        if event.ttft_ms >= 0 and self._ttft_ms[row] < 0:  # the message of its first token was lost
            self._cached[row], self._ttft_ms[row] = event.cached_tokens, event.ttft_ms
        elif event.ttft_ms >= 0 and self._cached[row] == CACHED_UNKNOWN:  # an attached server says it at the end
            self._cached[row] = event.cached_tokens
        self._output_tokens[row] = event.output_tokens
        self._ended_n[row], self._duration_ms[row] = number, event.duration_ms
        self._outcome[row] = self.outcomes[event.outcome]
        if row < self.watched:
            self._note_change(number, row)
        if event.outcome in TRIED_AGAIN:
            arrived_ms = self.columns["ms"][row] - self.columns["before_ms"][row]
            begun_ms, broke_ms, earlier = self._ttft_ms[row], event.duration_ms, self._prior_of.get(row)
            if earlier is not None and earlier.begun_ms >= 0:
                begun_ms, broke_ms = earlier.begun_ms, broke_ms if begun_ms >= 0 else earlier.broke_ms
            self._prior[event.request, replica] = _PriorAttempt(
                event.attempt, arrived_ms, event.outcome == DECLINED, begun_ms, broke_ms
            )

    def _void(self, row: int, number: int, ms: int) -> None:
        """The attempt is under way no more, though nothing tells its end."""
        if not self._ended_n[row]:
            self._ended_n[row], self._void_ms[row] = number, ms

    def _note_change(self, number: int, row: int) -> None:
        self.changed.append(row)
        self.changed_seqs.append(number // PLACES)

    def _gone(self, number: int, ms: int, replica: int) -> None:
        """The replica ended, and with it all that it had under way."""
        for key in [key for key in self._open if key[2] == replica]:
            row = self._open.pop(key)
            self._void(row, number, ms)
            self._duration_ms[row] = self.columns["before_ms"][row] + ms - self.columns["ms"][row]
            self._outcome[row] = self.outcomes[GONE]
            if row < self.watched:
                self._note_change(number, row)
        for of in (self._waiting, self._prior):
            for here in [place for place in of if place[1] == replica]:
                del of[here]

    def _restate(self, number: int, ms: int, replica: int, event: PartialEvent) -> None:
        """Attempts that it does not name are under way no more, also where their ends were lost."""
        self.restated.setdefault(self.replicas.names[replica], []).append(number)
        named = set(zip(event.requests, event.attempts, strict=False))
        for (request, attempt, of), row in self._open.items():
            if of == replica and (request, attempt) not in named:
                self._void(row, number, ms)

    def _turn_away(self, number: int, ms: int, replica: int, event: PartialEvent) -> None:
        """Of a request that a worker declined, its next attempt: the id is not used anew."""
        prior = self._prior.get((event.request, replica))
        attempt = prior.attempt + 1 if prior is not None and prior.declined else 0
        self._reject(number, ms, replica, event, attempt, turned_away=True)

    def _reject(
        self, number: int, ms: int, replica: int, event: PartialEvent, attempt: int, *, turned_away: bool = False
    ) -> None:
        place = event.request, replica
        wait = self._waiting.pop(place, None)
        self._prior.pop(place, None)
        refusal = RequestAttempt(
            request=event.request,
            attempt=attempt,
            replica=self.replicas.names[replica],
            model=event.model,
            at=number,
            time_ms=ms,
            tenant=event.tenant,
            status=event.status,
            turned_away=turned_away,
            queued_seq=wait.first_seq if wait is not None and not attempt else 0,
            held_seq=wait.last_seq if wait is not None and not attempt else 0,
            migrated_seq=self._moved.pop((event.request, attempt, replica), 0),
        )
        self.refusals.append(refusal)

    # --- answers -------------------------------------------------------------------------------------------------

    def row(self, number: int) -> int | None:
        """The row of the attempt of this number."""
        numbers = self.columns["n"]
        row = bisect_left(numbers, number)
        return row if row < len(self) and numbers[row] == number else None

    def at(self, number: int) -> RequestAttempt | None:
        """The attempt of this number."""
        row = self.row(number)
        return None if row is None else self.attempt(row)

    def attempt(self, row: int) -> RequestAttempt:
        """The attempt in this row; some 3 us."""
        (
            number, ms, worker, replica, attempt, prompt_tokens, predicted, before_ms, _, cached,
            ttft_ms, duration_ms, outcome, model, now_ms, blocks, prefill_tokens, output_tokens,
            prefilled_n, prefilled_ms, ended_n,
        ) = [column[row] for column in self.columns.values()]  # fmt: skip
        wait, earlier = self._waits.get(row), self._prior_of.get(row)
        return RequestAttempt(
            request=self.requests[row],
            attempt=attempt,
            replica=self.replicas.names[replica],
            model=self.models.names[model],
            at=number,
            time_ms=self._stored_ms.get(row, ms),
            worker=self.workers.names[worker],
            tenant=self._tenants.get(row, ""),
            session=self.session(row),
            prompt_tokens=prompt_tokens,
            predicted_tokens=predicted,
            blocks=blocks,
            prefill_tokens=prefill_tokens,
            now_ms=now_ms,
            before_ms=before_ms,
            queued_seq=0 if wait is None else wait.first_seq,
            held_seq=0 if wait is None else wait.last_seq,
            migrated_seq=self._migrated.get(row, 0),
            prefilled_at=prefilled_n,
            prefilled_ms=prefilled_ms,
            cached_tokens=cached,
            ttft_ms=ttft_ms,
            begun_ms=-1 if earlier is None else earlier.begun_ms,
            broke_ms=-1 if earlier is None or earlier.begun_ms < 0 else earlier.broke_ms,
            remote=row in self._remote,
            ended_at=ended_n,
            void_ms=self._void_ms.get(row, 0),
            duration_ms=duration_ms,
            output_tokens=output_tokens,
            outcome="" if outcome == UNDER_WAY else self.outcomes.names[outcome],
        )

    def tenant(self, row: int) -> str:
        """The tenant of the attempt in this row; empty if it has none."""
        return self._tenants.get(row, "")

    def session(self, row: int) -> str:
        """The key of the session of the attempt in this row; empty if its client named none."""
        return self.sessions.names[self._sessions[row]] if row in self._sessions else ""

    @property
    def tenants(self) -> frozenset[str]:
        """All that are named."""
        return frozenset(self._tenants.values())

    def span(self, start: int, end: int | None) -> range:
        """The rows of the attempts in messages of the routing stream from `start` up to `end` (not included)."""
        numbers = self.columns["n"]
        first = bisect_left(numbers, start * PLACES)
        return range(first, len(self) if end is None else max(first, bisect_left(numbers, end * PLACES)))

    def between(self, start: int = 0, end: int | None = None) -> Iterator[RequestAttempt]:
        """The attempts of that span and the refusals, in the order of the log."""
        behind = len(self.refusals) if end is None else bisect_left(self.refusals, end, key=attrgetter("seq"))
        refusals = self.refusals[bisect_left(self.refusals, start, key=attrgetter("seq")) : behind]
        return merge(map(self.attempt, self.span(start, end)), refusals, key=attrgetter("at"))

    def attempts(self, request: str) -> list[RequestAttempt]:
        """All attempts under this id, and its refusals, in the order of the log; none if the log does not know it."""
        self._index()
        routed = map(self.attempt, self._rows.get(request, ()))
        return list(merge(routed, self._refused.get(request, ()), key=attrgetter("at")))

    def named(self, text: str) -> str:
        """The id of the request that a person means by the text: its own id, that of its answer, or the beginning or
        end of one id alone; the text itself if the log knows no such request. CallerError if several ids begin or end
        so. O(all requests) for a part of an id."""
        self._index()
        for own in possible_ids(text):
            if own in self._rows or own in self._refused or own in self._renamed:
                return own
        given = map(given_id, chain(self._rows, self._refused))
        return only_one(text, (each for each in given if is_part(text, each))) or text

    def last(self, tenant: str | None = None) -> RequestAttempt | None:
        """The first attempt at the request that came last, or its refusal; of a tenant, if it is given."""
        refused = next((each for each in reversed(self.refusals) if tenant in {None, each.tenant}), None)
        for found in self.until(NEVER):
            if refused is not None and refused.at > found.at:
                break
            if found.attempt == 0 and tenant in {None, found.tenant}:
                return found
        return refused

    def uses(self, request: str) -> list[list[RequestAttempt]]:
        """The requests that had this id, each with its attempts, in the order of the log: clients may use one again."""
        found: list[list[RequestAttempt]] = []
        newest: dict[str, list[RequestAttempt]] = {}
        for attempt in self.attempts(request):
            if attempt.attempt == 0 or attempt.replica not in newest:
                newest[attempt.replica] = []
                found.append(newest[attempt.replica])
            newest[attempt.replica].append(attempt)
        return found

    def uses_of(self, request: str, tenant: str | None = None) -> list[list[RequestAttempt]]:
        """The tenant's requests to which clients gave this id, as `uses` has them; without a tenant, those of the only
        one. Renamed requests count if the tenant has no others. Empty if the log knows no such request.

        CallerError if several tenants have such requests and none is named: one would hide the other.
        """
        found = self.uses(request)
        again = [tries for other in self._renamed.get(request, ()) for tries in self.uses(other)]
        tenants = sorted({tries[0].tenant for tries in (*found, *again)})
        if tenant is None and len(tenants) > 1:
            raise several_tenants(request, tenants)
        own = [[tries for tries in each if tenant in {None, tries[0].tenant}] for each in (found, again)]
        return own[0] or sorted(own[1], key=lambda tries: tries[0].at)

    def _index(self) -> None:
        for row in range(self._indexed, len(self)):
            self._rows.setdefault(self.requests[row], []).append(row)
            self._index_id(self.requests[row])
        for refusal in self.refusals[self._indexed_refusals :]:
            self._refused.setdefault(refusal.request, []).append(refusal)
            self._index_id(refusal.request)
        self._indexed, self._indexed_refusals = len(self), len(self.refusals)

    def _index_id(self, request: str) -> None:
        if request[-SUFFIX_CHARS : -SUFFIX_CHARS + 1] == "." and (given := given_id(request)) != request:
            self._renamed.setdefault(given, {})[request] = None

    def before(self, attempt: RequestAttempt) -> list[RequestAttempt]:
        """The attempts under way on the worker of this attempt when it was routed, by the log as it stood then; in the
        order of the log. O(all attempts)."""
        return self._under_way(self.columns["worker"], self.workers.get(attempt.worker, -1), attempt.at)

    def soon_after(self, attempt: RequestAttempt, within_ms: int) -> list[RequestAttempt]:
        """The attempts routed to the same worker behind this one, up to so long after it and before its first token."""
        first, last = bisect_right(self.columns["n"], attempt.at), attempt.time_ms + within_ms
        workers, times, numbers = self.columns["worker"], self.columns["ms"], self.columns["n"]
        worker, end = self.workers.get(attempt.worker, -1), attempt.prefilled_at or NEVER
        found = []
        for row in range(first, len(self)):
            if times[row] > last or numbers[row] > end:
                break
            if workers[row] == worker:
                found.append(self.attempt(row))
        return found

    def delays_of(self, attempt: RequestAttempt) -> list[int]:
        """The first event behind the attempt's end that says that the client took the answer late; it may be that of a
        later request of the same id."""
        found = self._delays.get((attempt.request, self.replicas.get(attempt.replica, -1)), [])
        first = bisect_right(found, attempt.ended_at or NEVER)
        return found[first : first + 1] if attempt.ended_seq else []

    def own_under_way(self, replica: str, at: int) -> list[RequestAttempt]:
        """The attempts that the replica had under way before that event, by its own messages."""
        return self._under_way(self.columns["replica"], self.replicas.get(replica, -1), at)

    def _under_way(self, column: array[int], value: int, at: int) -> list[RequestAttempt]:
        rows = range(bisect_left(self.columns["n"], at))
        there = zip(rows, column, self._ended_n, strict=False)
        return [self.attempt(row) for row, each, ended in there if each == value and not 0 < ended < at]

    def until(self, number: int, replica: str | None = None) -> Iterator[RequestAttempt]:
        """The attempts up to that event (included), the newest first; of one replica, if it is given."""
        of, number_of = self.columns["replica"], None if replica is None else self.replicas.get(replica, -1)
        for row in reversed(range(bisect_right(self.columns["n"], number))):
            if number_of is None or of[row] == number_of:
                yield self.attempt(row)

    def newest(self, replica: str, seq: int) -> RequestAttempt | None:
        """The replica's newest attempt in a message up to that one (included)."""
        return next(self.until(seq * PLACES + PLACES - 1, replica), None)

    def neighbours(self, at: int, before: int, behind: int) -> list[RequestAttempt]:
        """So many attempts before that event, and so many behind it."""
        numbers = self.columns["n"]
        first, last = bisect_left(numbers, at), bisect_right(numbers, at)
        rows = (*range(max(0, first - before), first), *range(last, min(len(self), last + behind)))
        return [self.attempt(row) for row in rows]

    def counted_until(self, row: int) -> int:
        """From which event on no fold counts the attempt; 0 for none. A fold forgets what a replica has under way when
        messages of it are missing, and counts nothing of it until the replica restates itself."""
        ended, number = self._ended_n[row], self.columns["n"][row]
        replica = self.replicas.names[self.columns["replica"][row]]
        missing = self.missing.get(replica)
        if missing is None:
            return ended
        after = bisect_right(missing, number // PLACES)
        restated = self.restated.get(replica, [])
        if after and bisect_right(restated, number) == bisect_left(restated, missing[after - 1] * PLACES):
            return number
        if after == len(missing):
            return ended
        return min(ended or missing[after] * PLACES, missing[after] * PLACES)


def _routed_fields(event: PartialEvent) -> RoutedFields:
    if event.type in compact_decision.COMPACT_TYPES:
        return decode_decision(event.d)  # type: ignore[no-any-return]
    blocks, prefill_tokens = event.blocks, event.prefill_tokens
    return RoutedFields(
        event.request,
        event.attempt,
        event.model,
        event.worker,
        event.prompt_tokens,
        event.predicted_cached_tokens,
        blocks if isinstance(blocks, int) else 0,
        prefill_tokens if isinstance(prefill_tokens, int) else 0,
        event.now_ms,
        event.tenant,
        event.session,
    )


def _prefilled_fields(event: PartialEvent) -> PrefilledFields | RequestPrefilled:
    if event.type == compact_progress.COMPACT_PREFILLED:
        return decode_prefilled(event.e)
    return PrefilledFields(event.request, event.attempt, event.cached_tokens, event.ttft_ms, event.prefill)


def _finished_fields(event: PartialEvent) -> FinishedFields | RequestFinished:
    if event.type == compact_progress.COMPACT_FINISHED:
        return decode_finished(event.e)
    return FinishedFields(
        event.request,
        event.attempt,
        event.outcome,
        event.cached_tokens,
        event.ttft_ms,
        event.duration_ms,
        event.output_tokens,
    )
