"""Requests of a recording, one line each: the slowest, the failed ones, those of one worker."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.errors import CallerError
from core.event_json import time_text
from core.events.routing import CACHED_UNKNOWN
from core.keys import session_key
from core.subjects import ROUTING
from replay.cache.session_names import session_turns
from replay.recording.moment import Moment
from replay.recording.recording import Recording
from replay.recording.request_history import GONE, RequestAttempt

REJECTED, LOST = "rejected", "replica_lost"
"""Outcomes without a RequestFinished: no worker could take it; its replica ended first."""
UNDER_WAY = "under_way"


class RequestListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a request; None for a fact that the log does not have."""

    time: str
    """When the log stored the decision."""
    time_ms: int
    seq: int
    """The sequence of the decision in the routing stream."""
    request: str
    attempt: int
    model: str
    worker: str
    """Empty for one that was rejected."""
    worker_name: str
    replica: str
    replica_name: str
    tenant: str
    """Empty if it had none."""
    session: str
    """The session's key; empty if it named none."""
    prompt_tokens: int | None
    predicted_cached_tokens: int | None
    real_cached_tokens: int | None
    ttft_ms: int | None
    """From the request's arrival to its first token, whichever attempt made it."""
    pause_ms: int | None
    """Of an attempt that goes on with an answer: from when the one before it broke off to its own first token."""
    duration_ms: int | None
    output_tokens: int | None
    outcome: str
    """As `RequestFinished` has it, or `rejected`, `replica_lost`, `under_way`."""


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were asked for."""

    requests: list[RequestListEntry]
    matched: int
    """The number of those that fit, also of those that are not listed."""


def list_requests(
    recording: Recording,
    *,
    worker: str | None = None,
    replica: str | None = None,
    model: str | None = None,
    tenant: str | None = None,
    session: str | None = None,
    outcome: str | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    slowest: int | None = None,
    mispredicted: int | None = None,
    limit: int | None = None,
) -> RequestList:
    """Attempts that were routed from `start` up to `end` (not included) and fit all that is given; workers and replicas
    by name or id.

    In the order of the log, of which `limit` keeps the last; or the `slowest` by how long the client waited for the
    first token, or in a pause, or the worst `mispredicted`, the worst first. CallerError for a name that the log does
    not know.
    """
    tries = _within(recording, start, end)
    if worker is not None:
        workers = recording.names.workers_called(worker)
        tries = (tried for tried in tries if tried.worker in workers)
    if replica is not None:
        replicas = recording.names.replicas_called(replica)
        tries = (tried for tried in tries if tried.replica in replicas)
    if model is not None:
        tries = (tried for tried in tries if tried.model == model)
    if tenant is not None:
        tries = (tried for tried in tries if tried.tenant == tenant)
    if session is not None:
        tries = _of_session(recording, tries, session, tenant)
    if outcome is not None:
        tries = (tried for tried in tries if _outcome(tried) == outcome)
    if slowest is not None:
        answered = (tried for tried in tries if tried.prefilled_seq)
        fitting = sorted(answered, key=lambda tried: (-_waited_ms(tried), tried.seq))
    elif mispredicted is not None:
        wrong = (tried for tried in tries if _is_cache_known(tried) and tried.cached_tokens != tried.predicted_tokens)
        fitting = sorted(wrong, key=lambda tried: (-abs(tried.cached_tokens - tried.predicted_tokens), tried.seq))
    else:
        fitting = list(tries)
    chosen = fitting[: mispredicted if slowest is None else slowest]
    if limit is not None:
        chosen = chosen[-limit:] if slowest is None and mispredicted is None else chosen[:limit]
    return RequestList(requests=[_list_entry(recording, tried) for tried in chosen], matched=len(fitting))


def session_keys(recording: Recording, session: str, tenant: str | None) -> frozenset[str]:
    """The keys that a person may mean: the text itself, and with the deployment's key those of sessions that a tenant
    calls so; of every tenant in the log if none is given. CallerError if the log has none of them."""
    history, keys = recording.requests, {session}
    if recording.key is not None:
        tenants = {"", *history.tenants} if tenant is None else {tenant}
        keys |= {session_key(f"{each}/{session}", recording.key.hash_seed) for each in sorted(tenants)}
    found = frozenset(key for key in keys if key in history.sessions)
    if not found:
        how = "" if recording.key is not None else "; without the deployment's key only keys of sessions are known"
        raise CallerError(f"the log knows no session {session!r}{how}")
    return found


def turn_of(recording: Recording, session: str, tenant: str | None, turn: int) -> RequestAttempt:
    """The session's request of that number, from 1, by the log. A talk without a name of its client's is called by
    the id of its first request, as `SessionNames` has it. CallerError if there is none."""
    turns = _turns_of_talk(recording, session, tenant)
    if not turns:
        keys = session_keys(recording, session, tenant)
        turns = [tried for tried in recording.requests.between() if tried.session in keys and not tried.attempt]
    if turn > len(turns):
        raise CallerError(f"session {session!r} has {len(turns)} requests in this log, and no turn {turn}")
    return turns[turn - 1]


def _of_session(
    recording: Recording, tries: Iterator[RequestAttempt], session: str, tenant: str | None
) -> Iterator[RequestAttempt]:
    """Those of the session, or of the talk. CallerError if there is none."""
    if talk := _turns_of_talk(recording, session, tenant):
        requests = {tried.request for tried in talk}
        return (tried for tried in tries if tried.request in requests)
    keys = session_keys(recording, session, tenant)
    return (tried for tried in tries if tried.session in keys)


def _turns_of_talk(recording: Recording, name: str, tenant: str | None) -> list[RequestAttempt]:
    """The requests of a talk that is named by its first one; none if no talk has that name."""
    first = recording.requests.attempts(name)
    if not first or name in recording.requests.sessions:
        return []
    return [
        tried
        for session, _, tried in session_turns(recording)
        if session == name and not tried.attempt and tenant in {None, tried.tenant}
    ]


def _within(recording: Recording, start: Moment | None, end: Moment | None) -> Iterator[RequestAttempt]:
    first = 0 if start is None else recording.position(ROUTING, start)
    behind = None if end is None else recording.position(ROUTING, end)
    return recording.requests.between(first, behind)


def _waited_ms(tried: RequestAttempt) -> int:
    """The time that its client heard nothing before this attempt's first token."""
    return tried.pause_ms if tried.pause_ms >= 0 else tried.ttft_ms


def _outcome(tried: RequestAttempt) -> str:
    if not tried.worker:
        return REJECTED
    return LOST if tried.outcome == GONE else tried.outcome or UNDER_WAY


def _list_entry(recording: Recording, tried: RequestAttempt) -> RequestListEntry:
    names, routed = recording.names, tried.worker != ""
    return RequestListEntry(
        time=time_text(tried.time_ms),
        time_ms=tried.time_ms,
        seq=tried.seq,
        request=tried.request,
        attempt=tried.attempt,
        model=tried.model,
        worker=tried.worker,
        worker_name=names.worker(tried.worker),
        replica=tried.replica,
        replica_name=names.replica(tried.replica),
        tenant=tried.tenant,
        session=tried.session,
        prompt_tokens=tried.prompt_tokens if routed else None,
        predicted_cached_tokens=tried.predicted_tokens if routed else None,
        real_cached_tokens=tried.cached_tokens if _is_cache_known(tried) else None,
        ttft_ms=tried.first_token_ms if tried.first_token_ms >= 0 else None,
        pause_ms=tried.pause_ms if tried.pause_ms >= 0 else None,
        duration_ms=tried.duration_ms if tried.ended_seq else None,
        output_tokens=tried.output_tokens if tried.ended_seq else None,
        outcome=_outcome(tried),
    )


def _is_cache_known(tried: RequestAttempt) -> bool:
    """True if its engine said how much of the prompt came from its cache."""
    return bool(tried.prefilled_seq) and tried.cached_tokens != CACHED_UNKNOWN
