"""The requests of a recording as a trace, and which of them followed the answer to another request.

A request came when its replica first decided about it, or when it began to wait there. Its answer is as long as it was,
over all attempts. Requests that no worker took are left out, as are requests whose end the recording lacks.

A request follows an earlier one if its prompt begins with all full blocks of that prompt and is longer, and that
request had ended before it came; or if a client named the same session for both. Of several the longest prompt counts,
and then the request that ended last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush

from core.errors import CallerError
from core.events import RequestRouted
from core.ids import RequestId
from core.prompt import HASH_BYTES
from replay.recording.recording import Recording
from replay.recording.request_history import DECLINED
from replay.simulate.recorded_requests import RecordedRequest, all_requests, use_id
from replay.simulate.workload import US_PER_MS, FollowUp, Trace, TraceRequest


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
    found.sort(key=lambda it: it.came_ms)
    uses: Counter[str] = Counter()
    asked = [_asked(it, found[0].came_ms, uses) for it in found[: first or None]]
    return Trace(asked, partial(_hashes, {it.routed.block_size for it in found}))


def recorded_block_size(recording: Recording, model: str = "") -> int:
    """Tokens per block of the recording's first decision, of this model if one is given; 0 if there is none."""
    history = recording.requests
    for attempt in map(history.attempt, range(len(history))):
        if model in {"", attempt.model}:
            for _, event in recording.events([attempt.at]):
                if isinstance(event, RequestRouted):
                    return event.block_size
    return 0


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


def _asked(it: RecordedRequest, start_ms: int, uses: Counter[str]) -> TraceRequest:
    routed = it.routed
    uses[routed.request] += 1
    return TraceRequest(
        id=use_id(routed.request, uses[routed.request]),
        at_us=(it.came_ms - start_ms) * US_PER_MS,
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
        while ending and ending[0][0] <= it.came_ms:
            ended = requests[heappop(ending)[1]]
            if ended.routed.hashes:
                by_prompt[ended.routed.hashes[-HASH_BYTES:]] = ended
            if ended.routed.session:
                by_session[ended.routed.session] = ended
        before = by_session.get(it.routed.session) or _begun(it, by_prompt)
        if before is not None:
            found[it.id] = FollowUp(before.id, (it.came_ms - before.end_ms) * US_PER_MS)
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
