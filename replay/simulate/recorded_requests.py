"""RecordedRequests: the requests of a recording that can run again; all others are counted by what they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from core.errors import CallerError
from core.events import RequestRouted
from core.events.routing import EXPIRED
from core.ids import RequestId
from core.prompt import HASH_BYTES
from replay.recording.recording import Recording
from replay.recording.request_history import DECLINED, RequestAttempt
from replay.simulate.workload import US_PER_MS, FollowUp, Trace, TraceRequest

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
    arrival_ms: int
    """When it was decided about first, or began to wait in its replica."""
    timings: list[AttemptTiming] = msgspec.field(default_factory=list)
    outcome: str = ""
    """Of its last attempt; empty while it has not ended."""
    predicted_tokens: int = 0
    """Cached tokens that the decision before its first token expected."""
    remote: int = 0
    """Attempts of which prefill workers computed the prompts."""

    @property
    def attempt(self) -> int:
        """The number of the last one."""
        return self.routed.attempt + len(self.timings) - 1

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer that the client received. An attempt that continues the answer has them behind its
        prompt; one that repeats them counts them among its own."""
        prompt = self.routed.prompt_tokens
        return max((timing.prompt_tokens - prompt + timing.output_tokens for timing in self.timings), default=0)

    @property
    def served(self) -> AttemptTiming | None:
        """The attempt that gave the first token, if one came."""
        return next((timing for timing in self.timings if timing.first_ms != UNKNOWN_TIME), None)

    @property
    def end_ms(self) -> int:
        """Of its last attempt."""
        return self.timings[-1].end_ms


REFUSED = "no worker took them"
TURNED_AWAY = "they ended before a decision about them"
BEGUN_BEFORE = "they began before the record does"
UNDER_WAY = "the record ends before they do"
END_UNKNOWN = "the log lacks their end: their replica is gone, or its messages are lost"
UNANSWERED = "they ended without a token"
UNHASHED = "the record lacks hashes of their prompts"
CUT_SHORT = frozenset({"abort", "error", "worker_lost", EXPIRED})
"""Outcomes of answers that would have been longer."""


class RecordedRequests(NamedTuple):
    """Requests of the record that can be run again, and those left out."""

    requests: list[RecordedRequest]
    """In the order in which they came."""
    timings: list[AttemptTiming]
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
        """Arrival time of the first one."""
        return self.requests[0].arrival_ms


def read_requests(recording: Recording, model: str = "", end: int | None = None) -> RecordedRequests:
    """The requests with a first decision in the routing stream before `end`, of this model if one is given; some 10 us
    per event. CallerError if there is none, or if they cannot be run in one simulation."""
    found = _RequestReader(recording, model, end).found()
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
    """Brings the attempts of a recording together to requests."""

    def __init__(self, recording: Recording, model: str, end: int | None) -> None:
        self._recording = recording
        history = recording.requests
        self._attempts = [history.attempt(row) for row in range(len(history))]
        self._model = model
        self._end = end
        self._strangers: set[tuple[str, str]] = set()
        """Replicas and requests of attempts that nothing begins."""

    def found(self) -> RecordedRequests:
        """All that the recording tells."""
        requests = self.requests()
        left_out = self._refused()
        left_out[BEGUN_BEFORE] += len(self._strangers)
        kept: list[RecordedRequest] = []
        for it in requests:
            lack = _lack(it)
            if lack:
                left_out[lack] += 1
            else:
                kept.append(it)
        kept.sort(key=lambda it: it.arrival_ms)
        cut_short = Counter(it.outcome for it in kept if it.outcome in CUT_SHORT)
        first_seqs = self._recording.requests.first_seqs
        return RecordedRequests(
            requests=kept,
            timings=[timing for it in requests for timing in it.timings],
            left_out={reason: count for reason, count in sorted(left_out.items()) if count},
            cut_short=dict(sorted(cut_short.items())),
            remote=sum(it.remote for it in requests),
            replicas=self._recording.replicas.at_once(first_seqs, {it.replica for it in kept}),
        )

    def requests(self) -> list[RecordedRequest]:
        """In the order of their first decisions."""
        found: list[tuple[RequestId, RequestRouted, list[RequestAttempt]]] = []
        now: dict[tuple[str, str], list[RequestAttempt]] = {}
        uses: Counter[str] = Counter()
        first_events = self._first_events()
        for attempt in self._attempts:
            key = attempt.replica, attempt.request
            if not attempt.attempt:
                now.pop(key, None)  # the name is another request's from here on
                if attempt.at in first_events:
                    uses[attempt.request] += 1
                    now[key] = [attempt]
                    name = use_id(attempt.request, uses[attempt.request])
                    found.append((name, first_events[attempt.at], now[key]))
            elif key in now:
                now[key].append(attempt)
            elif not self._is_outside(attempt):
                self._strangers.add(key)
        return [_recorded_request(*each) for each in found]

    def _first_events(self) -> dict[int, RequestRouted]:
        """By number, the first decisions of the requests that are asked for, whole."""
        asked = [each.at for each in self._attempts if not (each.attempt or self._is_outside(each))]
        events = self._recording.whole_events(asked)
        return {number: event for number, event in events if isinstance(event, RequestRouted)}

    def _is_outside(self, attempt: RequestAttempt) -> bool:
        """The attempt stands behind the end, or is of another model. A later attempt counts all the same if its request
        came before."""
        return (self._end is not None and attempt.seq >= self._end) or self._model not in {"", attempt.model}

    def _refused(self) -> Counter[str]:
        """Requests that no worker got. The refusal of a request that was decided on before is no request of its own."""
        refusals = [each for each in self._recording.requests.refusals if not self._is_outside(each)]
        return Counter(TURNED_AWAY if each.turned_away else REFUSED for each in refusals if not each.attempt)


def all_requests(recording: Recording, model: str = "") -> list[RecordedRequest]:
    """Those of this model, if one is given, in the order of their first decisions, incomplete ones too."""
    return _RequestReader(recording, model, None).requests()


def use_id(request: str, use: int) -> RequestId:
    """The id of the request that has it in the recording as the `use`-th one."""
    return RequestId(request if use == 1 else f"{request}-use-{use}")


def _recorded_request(name: RequestId, routed: RequestRouted, attempts: list[RequestAttempt]) -> RecordedRequest:
    first, last = attempts[0], attempts[-1]
    arrival_ms = first.now_ms - first.before_ms
    behind: list[RequestAttempt | None] = [*attempts[1:], None]
    timings = [_timing(attempt, arrival_ms, after) for attempt, after in zip(attempts, behind, strict=True)]
    served = next((at for at, timing in enumerate(timings) if timing.first_ms != UNKNOWN_TIME), -1)
    return RecordedRequest(
        name,
        first.replica,
        first.seq,
        routed,
        arrival_ms,
        timings,
        outcome=last.outcome if last.ended_seq else "",
        predicted_tokens=attempts[served].predicted_tokens,
        remote=sum(attempt.remote for attempt in attempts),
    )


def _timing(attempt: RequestAttempt, arrival_ms: int, after: RequestAttempt | None) -> AttemptTiming:
    """`after` is the next attempt: an attempt without an end ended before it."""
    timing = AttemptTiming(attempt.worker, attempt.now_ms, attempt.prompt_tokens, declined=attempt.declined)
    if attempt.ttft_ms >= 0:
        timing.first_ms, timing.cached_tokens = arrival_ms + attempt.ttft_ms, attempt.reused_tokens
    if attempt.ended_seq:
        timing.end_ms, timing.output_tokens = arrival_ms + attempt.duration_ms, attempt.output_tokens
    elif attempt.ended_at:
        timing.end_ms = max(timing.sent_ms, timing.first_ms, attempt.void_ms)
    elif after is not None:
        timing.end_ms = after.now_ms
    return timing


def _lack(it: RecordedRequest) -> str:
    """Why it cannot be run again; empty if it can."""
    if not it.outcome:
        return UNDER_WAY if it.end_ms == UNKNOWN_TIME else END_UNKNOWN
    if it.served is None or not it.output_tokens:
        return UNANSWERED
    if (
        it.routed.base is not UNSET
        or len(it.routed.hashes) != it.routed.prompt_tokens // it.routed.block_size * HASH_BYTES
    ):
        return UNHASHED
    return ""


def recorded_trace(recording: Recording, model: str = "", first: int = 0) -> Trace:
    """The recording's requests, of this model if one is given, the first so many of them if that is given; some 15 us
    per event. CallerError if there is none, or if it has several models and none is given."""
    found = [it for it in all_requests(recording, model) if it.outcome not in {"", DECLINED}]
    if not found:
        of = f" of the model {model!r}" if model else ""
        raise CallerError(
            f"no request{of} has its beginning and its end in this recording: there is nothing to simulate"
        )
    if len(models := sorted({it.routed.model for it in found})) > 1:
        raise CallerError(f"the recording has requests of several models ({', '.join(models)}): name one with --model")
    found.sort(key=lambda it: it.arrival_ms)
    asked = [trace_request(it, found[0].arrival_ms) for it in found[: first or None]]
    return Trace(asked, partial(_hashes, {it.routed.block_size for it in found}))


class RecordedShape(NamedTuple):
    """The workers that a recording's requests went to."""

    block_size: int
    """Tokens per block of the first decision; 0 if there is none."""
    workers: int
    """The most at a time: each from its first request to its last. 0 if there is none."""


def recorded_shape(recording: Recording, model: str = "") -> RecordedShape:
    """Of the requests for this model, if one is given; O(requests)."""
    history, block_size = recording.requests, 0
    first, last = dict[str, int](), dict[str, int]()
    for place in range(len(history)):
        attempt = history.attempt(place)
        if not attempt.worker or model not in {"", attempt.model}:
            continue
        first.setdefault(attempt.worker, place)
        last[attempt.worker] = place
        if not block_size:
            routed = (it for _, it in recording.events([attempt.at]) if isinstance(it, RequestRouted))
            block_size = next((it.block_size for it in routed), 0)
    steps = sorted([*((place, 1) for place in first.values()), *((place + 1, -1) for place in last.values())])
    return RecordedShape(block_size, max(accumulate((step for _, step in steps), initial=0)))


def _hashes(recorded_sizes: set[int], asked: TraceRequest, block_size: int) -> bytes:
    """The recorded hashes at another block size: one covers its whole prefix, so every n-th is that of a block n times
    as large."""
    if len(recorded_sizes) > 1:
        sizes = ", ".join(map(str, sorted(recorded_sizes)))
        raise CallerError(f"the recording has blocks of several sizes ({sizes}): simulate a range with only one")
    (own,) = recorded_sizes
    if block_size % own:
        raise CallerError(f"the recording has blocks of {own} tokens: give --block-size {own}, or a multiple of it")
    every = block_size // own
    starts = range((every - 1) * HASH_BYTES, len(asked.content), every * HASH_BYTES)
    return b"".join([asked.content[at : at + HASH_BYTES] for at in starts])


def trace_request(it: RecordedRequest, start_ms: int) -> TraceRequest:
    """The request in the form of a trace that begins at `start_ms`; its content are the recorded hashes."""
    routed = it.routed
    return TraceRequest(
        id=it.id,
        at_us=(it.arrival_ms - start_ms) * US_PER_MS,
        prompt_tokens=routed.prompt_tokens,
        output_tokens=max(1, it.output_tokens),
        content=routed.hashes,
        tenant=routed.tenant,
        session=routed.session,
        priority=routed.priority,
    )


def find_follow_ups(requests: Sequence[RecordedRequest]) -> dict[RequestId, FollowUp]:
    """Each that follows another one, and how long after that one's end it came. `requests` are in the order in which
    they came; some 0.1 us per block."""
    found: dict[RequestId, FollowUp] = {}
    ending: list[tuple[int, int]] = []
    by_prompt: dict[bytes, RecordedRequest] = {}
    by_session: dict[str, RecordedRequest] = {}
    for number, it in enumerate(requests):
        while ending and ending[0][0] <= it.arrival_ms:
            ended = requests[heappop(ending)[1]]
            if ended.routed.hashes:
                by_prompt[ended.routed.hashes[-HASH_BYTES:]] = ended
            if ended.routed.session:
                by_session[ended.routed.session] = ended
        before = by_session.get(it.routed.session) or _begun(it, by_prompt)
        if before is not None:
            found[it.id] = FollowUp(before.id, (it.arrival_ms - before.end_ms) * US_PER_MS)
        heappush(ending, (it.end_ms, number))
    return found


def _begun(it: RecordedRequest, by_prompt: dict[bytes, RecordedRequest]) -> RecordedRequest | None:
    """The longest earlier prompt that this one goes on with."""
    hashes = it.routed.hashes
    for end in range(len(hashes), 0, -HASH_BYTES):
        before = by_prompt.get(hashes[end - HASH_BYTES : end])
        if before is not None and before.routed.prompt_tokens < it.routed.prompt_tokens:
            return before
    return None
