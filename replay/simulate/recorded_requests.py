"""RecordedRequests: the requests of a recording that can run again; all others are counted by what they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from core.codec import Message
from core.errors import CallerError
from core.events import (
    Event,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    UnknownEvent,
)
from core.events.routing import RequestQueued, RequestTurnedAway
from core.ids import LOST_SUFFIX, RequestId
from core.prompt import HASH_BYTES
from core.subjects import ROUTING, owner
from replay.recording.recording import Recording
from streams.log import Record

UNKNOWN_TIME = -1
"""A time that the record does not tell."""


class AttemptTiming(msgspec.Struct, gc=False):
    """One attempt: what a worker did for a request, in milliseconds of its replica's clock."""

    worker: str
    sent_ms: int
    prompt_tokens: int
    """With what the client had of the answer already."""
    cached_tokens: int = 0
    output_tokens: int = 0
    first_ms: int = UNKNOWN_TIME
    """Of its first token."""
    end_ms: int = UNKNOWN_TIME
    declined: bool = False
    """The worker would not take it."""

    @property
    def computed_tokens(self) -> int:
        """Of the prompt."""
        return self.prompt_tokens - self.cached_tokens


class RecordedRequest(msgspec.Struct, gc=False):
    """One request of a recording, from its arrival to the end of its answer."""

    id: RequestId
    """Of its own: ids that are used again get a number behind them."""
    replica: str
    seq: int
    """Of the message with its first decision."""
    routed: RequestRouted
    """The first decision."""
    came_ms: int
    """When it was decided about first, or began to wait in its replica."""
    stints: list[AttemptTiming] = msgspec.field(default_factory=list)
    outcome: str = ""
    """Of its last attempt; empty while it has not ended."""
    predicted_tokens: int = 0
    """What the decision before its first token expected in the cache."""

    @property
    def attempt(self) -> int:
        """The number of the last one."""
        return self.routed.attempt + len(self.stints) - 1

    @property
    def output_tokens(self) -> int:
        """What its client got of the answer. An attempt that goes on with it has the tokens so far behind its prompt;
        one that has to make them again counts them among its own."""
        prompt = self.routed.prompt_tokens
        return max((stint.prompt_tokens - prompt + stint.output_tokens for stint in self.stints), default=0)

    @property
    def served(self) -> AttemptTiming | None:
        """The attempt that gave the first token, if one came."""
        return next((stint for stint in self.stints if stint.first_ms != UNKNOWN_TIME), None)

    @property
    def end_ms(self) -> int:
        """Of its last attempt."""
        return self.stints[-1].end_ms


NEVER = 1 << 62
"""A sequence that no stream reaches."""


class _ReplicaLifetime(msgspec.Struct):
    """One id, from its first message to its end, by the routing stream."""

    name: str
    from_seq: int
    until_seq: int = NEVER


class ReplicaLifetimes:
    """The replicas of a recording, and how many of them decided at one time.

    A frontend that restarts has a new id and mostly the same name, and the new one may come before the old one ends.
    Pods of one deployment have new names, and follow each other. So replicas count by name while one of that name is
    there.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _ReplicaLifetime] = {}

    def __repr__(self) -> str:
        return f"<Replicas, {len(self._lives)} so far>"

    def spoke(self, replica: str, seq: int) -> None:
        """It is there; until its name is known it goes by its id."""
        if replica not in self._lives:
            self._lives[replica] = _ReplicaLifetime(replica, seq)

    def joined(self, replica: str, name: str) -> None:
        """It is called so; it may say so again."""
        self._lives[replica].name = name or replica

    def ended(self, replica: str, seq: int) -> None:
        """Nothing follows."""
        if replica in self._lives:
            self._lives[replica].until_seq = seq

    def at_once(self, replicas: Collection[str]) -> int:
        """The most names of these that were there at one time; O(n log n)."""
        lives = [self._lives[replica] for replica in replicas]
        edges = [(life.from_seq, 1, life.name) for life in lives] + [(life.until_seq, -1, life.name) for life in lives]
        there: Counter[str] = Counter()
        most = 0
        for _, change, name in sorted(edges):  # who goes, before who comes
            there[name] += change
            if not there[name]:
                del there[name]
            most = max(most, len(there))
        return most


REFUSED = "no worker took them"
TURNED_AWAY = "they ended before a decision about them"
BEGUN_BEFORE = "they began before the record does"
UNDER_WAY = "the record ends before they do"
UNHEARD = "nobody told how they ended: their replica went, or what it said was lost"
UNANSWERED = "they ended without a token"
UNHASHED = "the record lacks hashes of their prompts"
CUT_SHORT = frozenset({"abort", "error", "worker_lost"})
"""Outcomes of answers that would have been longer."""


class RecordedRequests(NamedTuple):
    """What of the record can be run again."""

    requests: list[RecordedRequest]
    """In the order in which they came."""
    stints: list[AttemptTiming]
    """All that workers did, also for requests that are left out."""
    left_out: dict[str, int]
    """Requests that cannot be run again, by what they lack."""
    cut_short: dict[str, int]
    """Requests that are run with the tokens that they got, though they ended otherwise than well, by how."""
    remote: int
    """Prompts that prefill workers computed."""
    replicas: int
    """That decided about them, as many as there were at once."""

    @property
    def model(self) -> str:
        """Of all of them."""
        return self.requests[0].routed.model

    @property
    def block_size(self) -> int:
        """Of all of them."""
        return self.requests[0].routed.block_size

    @property
    def start_ms(self) -> int:
        """When the first one came."""
        return self.requests[0].came_ms


def read_requests(recording: Recording, model: str = "", end: int | None = None) -> RecordedRequests:
    """The requests of this model, if one is given, whose first decision stands in the routing stream before `end`;
    some 20 us per event. CallerError if there is none, or if they cannot be run in one simulation."""
    reader = _RequestReader(model)
    if ROUTING in recording.streams:
        for record, message in recording.said(ROUTING):
            reader.read(record, message, late=end is not None and record.seq >= end)
    found = reader.found()
    if not found.requests:
        why = ", ".join(f"{count:,} are left out because {reason}" for reason, count in found.left_out.items())
        of = f" of the model {model!r}" if model else ""
        raise CallerError(f"no request{of} in this part of the record can be run again: {why or 'none is there'}")
    if len(models := sorted({it.routed.model for it in found.requests})) > 1:
        raise CallerError(f"the record has requests for several models ({', '.join(models)}): name one with --model")
    if len(sizes := sorted({it.routed.block_size for it in found.requests})) > 1:
        listed = ", ".join(map(str, sizes))
        raise CallerError(f"the record has blocks of several sizes ({listed}): take a part of it that has only one")
    if found.remote:
        raise CallerError(
            f"prefill workers computed {found.remote:,} of the recorded prompts: a closed loop is simulated only of "
            "workers that compute their prompts themselves; leave --closed-loop out"
        )
    return found


class _RequestReader:
    """Goes through the routing stream once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._requests: list[RecordedRequest] = []
        self._now: dict[str, dict[str, RecordedRequest]] = {}
        """By replica, and the name that it goes by there."""
        self._waits: dict[tuple[str, str], int] = {}
        """Since when those wait that do: for a place, and then to be sent."""
        self._uses: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()
        self._strangers: set[tuple[str, str]] = set()
        self._remote = 0
        self._replicas = ReplicaLifetimes()

    def read(self, record: Record, message: Message, *, late: bool) -> None:
        """One message; what is somebody else's, and the same once more, is passed over. `late` is one behind the end:
        only what it says of requests that came before counts."""
        replica = owner(record.subject)
        if message.source == replica + LOST_SUFFIX:
            self._gone(replica, record)
        elif message.source == replica and message.n >= self._next.get(replica, 0):
            self._next[replica] = message.n + 1
            self._replicas.spoke(replica, record.seq)
            for event in message.events:
                self._event(replica, record, event, late=late)

    def found(self) -> RecordedRequests:
        """All that was read."""
        left_out = self._left_out
        left_out[BEGUN_BEFORE] += len(self._strangers)
        kept: list[RecordedRequest] = []
        for it in self._requests:
            lack = _lack(it)
            if lack:
                left_out[lack] += 1
            else:
                kept.append(it)
        kept.sort(key=lambda it: it.came_ms)
        cut_short = Counter(it.outcome for it in kept if it.outcome in CUT_SHORT)
        return RecordedRequests(
            requests=kept,
            stints=[stint for it in self._requests for stint in it.stints],
            left_out={reason: count for reason, count in sorted(left_out.items()) if count},
            cut_short=dict(sorted(cut_short.items())),
            remote=self._remote,
            replicas=self._replicas.at_once({it.replica for it in kept}),
        )

    def _event(self, replica: str, record: Record, event: Event | UnknownEvent, *, late: bool) -> None:
        match event:
            case RequestFinished() | RequestPrefilled():
                self._heard(replica, event)
            case RequestRouted() | RequestQueued() | RequestRejected() | RequestTurnedAway():
                aside = late or self._model not in {"", event.model}
                self._asked((replica, event.request), record.seq, event, aside=aside)
            case ReplicaJoined():
                self._replicas.joined(replica, event.name)
            case ReplicaLeft() | ReplicaLost():
                self._gone(replica, record)
            case ReplicaRestated():
                named = set(zip(event.requests, event.attempts, strict=True))
                self._void(replica, record.time_ms, named)

    def _asked(
        self,
        key: tuple[str, str],
        seq: int,
        event: RequestRouted | RequestQueued | RequestRejected | RequestTurnedAway,
        *,
        aside: bool,
    ) -> None:
        """`aside` is what stands behind the end, or is of another model."""
        match event:
            case RequestRouted() if event.attempt:
                self._again(key, event, aside=aside)
            case RequestRouted() if aside:
                self._now.get(key[0], {}).pop(key[1], None)  # the name is another's from here on
            case RequestRouted():
                self._first(key, seq, event)
            case _ if aside:
                pass
            case RequestQueued():
                self._waits.setdefault(key, event.now_ms)
            case RequestRejected():
                self._waits.pop(key, None)
                self._left_out[REFUSED] += not event.attempt
            case RequestTurnedAway():
                self._waits.pop(key, None)
                self._left_out[TURNED_AWAY] += not self._declined(key)

    def _declined(self, key: tuple[str, str]) -> bool:
        """Whether it was decided about, and counts as a request without a token."""
        it = self._now.get(key[0], {}).get(key[1])
        return it is not None and it.outcome == "declined"

    def _first(self, key: tuple[str, str], seq: int, event: RequestRouted) -> None:
        """A request came."""
        self._uses[event.request] += 1
        use = self._uses[event.request]
        name = RequestId(event.request if use == 1 else f"{event.request}-use-{use}")
        it = RecordedRequest(name, key[0], seq, event, self._waits.pop(key, event.now_ms))
        self._now.setdefault(key[0], {})[key[1]] = it
        self._requests.append(it)
        self._sent(it, event)

    def _again(self, key: tuple[str, str], event: RequestRouted, *, aside: bool) -> None:
        """Its next attempt: whatever became of the one before was not its end."""
        self._waits.pop(key, None)
        it = self._now.get(key[0], {}).get(key[1])
        if it is not None:
            it.outcome = ""
            if it.end_ms == UNKNOWN_TIME:
                it.stints[-1].end_ms = event.now_ms
            self._sent(it, event)
        elif not aside:
            self._strangers.add(key)

    def _sent(self, it: RecordedRequest, event: RequestRouted) -> None:
        if it.served is None:
            it.predicted_tokens = event.predicted_cached_tokens
        it.stints.append(AttemptTiming(event.worker, event.now_ms, event.prompt_tokens))

    def _gone(self, replica: str, record: Record) -> None:
        """What it had under way ended with it."""
        self._replicas.ended(replica, record.seq)
        self._void(replica, record.time_ms)

    def _void(self, replica: str, time_ms: int, named: Collection[tuple[str, int]] = ()) -> None:
        """Its attempts are over but for those named, by the log's clock; nothing says how."""
        for request, it in self._now.get(replica, {}).items():
            stint = it.stints[-1]
            if stint.end_ms == UNKNOWN_TIME and (request, it.attempt) not in named:
                stint.end_ms = max(stint.sent_ms, stint.first_ms, time_ms)

    def _heard(self, replica: str, event: RequestPrefilled | RequestFinished) -> None:
        it = self._now.get(replica, {}).get(event.request)
        if it is None or it.attempt != event.attempt:
            return
        stint = it.stints[-1]
        if event.ttft_ms >= 0 and stint.first_ms == UNKNOWN_TIME:
            stint.first_ms, stint.cached_tokens = it.came_ms + event.ttft_ms, event.cached_tokens
        if isinstance(event, RequestPrefilled):
            self._remote += event.prefill is not None and event.prefill.remote
            return
        stint.end_ms, stint.output_tokens = it.came_ms + event.duration_ms, event.output_tokens
        it.outcome, stint.declined = event.outcome, event.outcome == "declined"


def _lack(it: RecordedRequest) -> str:
    """Why it cannot be run again; empty if it can."""
    if not it.outcome:
        return UNDER_WAY if it.end_ms == UNKNOWN_TIME else UNHEARD
    if it.served is None or not it.output_tokens:
        return UNANSWERED
    if len(it.routed.hashes) != it.routed.prompt_tokens // it.routed.block_size * HASH_BYTES:
        return UNHASHED
    return ""
