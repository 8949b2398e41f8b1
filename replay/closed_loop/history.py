"""History: the requests of a recording that can be run again, and those that cannot, counted by what they lack."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from core.errors import CallerError
from core.events import (
    Event,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    UnknownEvent,
)
from core.ids import RequestId
from core.prompt import HASH_BYTES
from core.queue_events import RequestQueued, RequestTurnedAway
from core.subjects import ROUTING, owner
from replay.closed_loop.past import UNTOLD, Past, Stint
from replay.recording import Recording

REFUSED = "no worker took them"
TURNED_AWAY = "they ended before a decision about them"
BEGUN_BEFORE = "they began before the record does"
UNDER_WAY = "the record ends before they do"
UNANSWERED = "they ended without a token"
UNHASHED = "the record lacks hashes of their prompts"
CUT_SHORT = frozenset({"abort", "error", "worker_lost"})
"""Outcomes of answers that would have been longer."""


class History(NamedTuple):
    """What of the record can be run again."""

    requests: list[Past]
    """In the order in which they came."""
    stints: list[Stint]
    """All that workers did, also for requests that are left out."""
    left_out: dict[str, int]
    """Requests that cannot be run again, by what they lack."""
    cut_short: dict[str, int]
    """Requests that are run with the tokens that they got, though they ended otherwise than well, by how."""
    remote: int
    """Prompts that prefill workers computed."""

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


def history(recording: Recording, model: str = "", end: int | None = None) -> History:
    """The requests of this model, if one is given, whose first decision stands in the routing stream before `end`;
    some 20 us per event. CallerError if there is none, or if they cannot be run in one simulation."""
    reader = _Reader(model)
    if ROUTING in recording.streams:
        for record, message in recording.said(ROUTING):
            reader.read(owner(record.subject), record.seq, message.source, message.n, message.events, end)
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


class _Reader:
    """Goes through the routing stream once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._requests: list[Past] = []
        self._now: dict[tuple[str, str], Past] = {}
        """By replica and the name that it goes by there."""
        self._waits: dict[tuple[str, str], int] = {}
        """Since when those wait that do: for a place, and then to be sent."""
        self._uses: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()
        self._strangers: set[tuple[str, str]] = set()
        self._remote = 0

    def read(
        self, replica: str, seq: int, source: str, n: int, events: tuple[Event | UnknownEvent, ...], end: int | None
    ) -> None:
        """One message; what is somebody else's, and the same once more, is passed over."""
        if source != replica or n < self._next.get(replica, 0):
            return
        self._next[replica] = n + 1
        for event in events:
            if isinstance(event, RequestFinished | RequestPrefilled):
                self._heard(replica, event)
            elif end is None or seq < end:
                self._asked(replica, seq, event)

    def found(self) -> History:
        """All that was read."""
        left_out = self._left_out
        left_out[BEGUN_BEFORE] += len(self._strangers)
        kept: list[Past] = []
        for it in self._requests:
            lack = _lack(it)
            if lack:
                left_out[lack] += 1
            else:
                kept.append(it)
        kept.sort(key=lambda it: it.came_ms)
        cut_short = Counter(it.outcome for it in kept if it.outcome in CUT_SHORT)
        return History(
            requests=kept,
            stints=[stint for it in self._requests for stint in it.stints],
            left_out={reason: count for reason, count in sorted(left_out.items()) if count},
            cut_short=dict(sorted(cut_short.items())),
            remote=self._remote,
        )

    def _asked(self, replica: str, seq: int, event: Event | UnknownEvent) -> None:
        if not isinstance(event, RequestQueued | RequestRouted | RequestRejected | RequestTurnedAway):
            return
        if self._model not in {"", event.model}:
            return
        key = (replica, event.request)
        match event:
            case RequestQueued():
                self._waits.setdefault(key, event.now_ms)
            case RequestRouted():
                self._routed(key, seq, event)
            case RequestRejected():
                self._waits.pop(key, None)
                self._left_out[REFUSED] += not event.attempt
            case RequestTurnedAway():
                self._waits.pop(key, None)
                self._left_out[TURNED_AWAY] += not self._declined(key)

    def _declined(self, key: tuple[str, str]) -> bool:
        """Whether it was decided about, and counts as a request without a token."""
        it = self._now.get(key)
        return it is not None and it.outcome == "declined"

    def _routed(self, key: tuple[str, str], seq: int, event: RequestRouted) -> None:
        if not event.attempt:
            self._uses[event.request] += 1
            use = self._uses[event.request]
            name = RequestId(event.request if use == 1 else f"{event.request}-use-{use}")
            came_ms = self._waits.pop(key, event.now_ms)
            self._now[key] = Past(name, key[0], seq, event, came_ms)
            self._requests.append(self._now[key])
        it = self._now.get(key)
        if it is None:
            self._strangers.add(key)
            return
        if it.served is None:
            it.predicted_tokens = event.predicted_cached_tokens
        it.stints.append(Stint(event.worker, event.now_ms, event.prompt_tokens))

    def _heard(self, replica: str, event: RequestPrefilled | RequestFinished) -> None:
        it = self._now.get((replica, event.request))
        if it is None or it.routed.attempt + len(it.stints) - 1 != event.attempt:
            return
        stint = it.stints[-1]
        if event.ttft_ms >= 0 and stint.first_ms == UNTOLD:
            stint.first_ms, stint.cached_tokens = it.came_ms + event.ttft_ms, event.cached_tokens
        if isinstance(event, RequestPrefilled):
            self._remote += event.prefill is not None and event.prefill.remote
            return
        stint.end_ms, stint.output_tokens = it.came_ms + event.duration_ms, event.output_tokens
        it.outcome, stint.declined = event.outcome, event.outcome == "declined"


def _lack(it: Past) -> str:
    """Why it cannot be run again; empty if it can."""
    if not it.outcome:
        return UNDER_WAY
    if it.served is None or not it.output_tokens:
        return UNANSWERED
    if len(it.routed.hashes) != it.routed.prompt_tokens // it.routed.block_size * HASH_BYTES:
        return UNHASHED
    return ""
