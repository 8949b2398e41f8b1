"""Checks of the processes: who answers, how far each has folded, what waits to be appended. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from api.amounts import number_text, seconds_text
from api.census import Answer
from api.doctor.finding import OK, PROBLEM, WARNING, Finding
from api.replicas.replica import Replica, replica_of

LAG_EVENTS_WARNING = 10_000
LAG_MS_WARNING = 5_000.0
OUTBOX_EVENTS_WARNING = 10_000
JOURNAL_WARNING, JOURNAL_PROBLEM = 0.5, 0.9
"""Shares of the journal's capacity."""


def check_parts(replicas: list[Answer], workers: list[Answer]) -> Iterator[Finding]:
    """All that the registered processes say of themselves."""
    found = [replica_of(answer) for answer in replicas]
    there = [it for it in found if it.answered]
    yield check_answers(replicas, workers)
    if there:
        yield check_lag(there)
        yield check_unknown(there)
        yield check_gaps(there)
    yield check_log_away(replicas)
    yield check_outboxes([*replicas, *workers])
    yield check_journals(replicas)


def check_answers(replicas: list[Answer], workers: list[Answer]) -> Finding:
    """Everybody that holds a lease answers; one that crashed and has a successor keeps its lease for some seconds."""
    everybody = [*replicas, *workers]
    old = [*_succeeded(replicas), *_succeeded(workers)]
    silent = [answer for answer in everybody if answer.state is None and answer not in old]
    facts = {
        "replicas": len(replicas),
        "workers": len(workers),
        "silent": {answer.part.name: answer.why for answer in silent},
        "succeeded": [answer.part.id for answer in old],
    }
    if not replicas or not workers:
        none = " and ".join(kind for kind, some in (("front end", replicas), ("worker", workers)) if not some)
        return Finding("leases", PROBLEM, f"No {none} is registered: start one.", facts)
    if silent:
        said = "; ".join(f"{answer.part.name} {answer.why}" for answer in silent[:3])
        text = f"{len(silent)} of {len(everybody)} that hold a lease do not answer: {said}; see their logs."
        return Finding("leases", PROBLEM, text, facts)
    text = f"{len(replicas)} front ends and {len(workers)} workers hold a lease, and all answer."
    if old:
        names = ", ".join(dict.fromkeys(answer.part.name for answer in old))
        text = (
            f"{len(everybody) - len(old)} of {len(everybody)} that hold a lease answer; the others are lives of "
            f"{names} before this one, whose leases end by themselves within seconds."
        )
    return Finding("leases", OK, text, facts)


def _succeeded(answers: list[Answer]) -> list[Answer]:
    """Those that are silent, and of whose name a later life answers."""
    lives = {answer.part.name: answer.part.revision for answer in answers if answer.state is not None}
    return [it for it in answers if it.state is None and it.part.revision < lives.get(it.part.name, 0)]


def check_lag(replicas: list[Replica]) -> Finding:
    """Every replica has folded the log up to now, or nearly so."""
    facts = {it.name: {"lag_events": it.lag_events, "lag_ms": it.lag_ms} for it in replicas}
    late = [
        it.name for it in replicas if (it.lag_events or 0) > LAG_EVENTS_WARNING or (it.lag_ms or 0.0) > LAG_MS_WARNING
    ]
    if late:
        text = f"{', '.join(late)} is far behind the log: give it more CPU, or fewer requests, until it has caught up."
        return Finding("lag", WARNING, text, facts)
    most = max((it.lag_events or 0 for it in replicas), default=0)
    return Finding("lag", OK, f"No replica is more than {number_text(most)} messages behind the log.", facts)


def check_unknown(replicas: list[Replica]) -> Finding:
    """Every replica knows the state of every source, and reads every event."""
    facts = {
        it.name: {"incomplete": it.incomplete, "corrupt": it.corrupt, "unknown_events": it.unknown_events}
        for it in replicas
    }
    for status, count, text in (
        (WARNING, lambda it: it.incomplete, "{} does not know the state of {} sources until they restate themselves."),
        (WARNING, lambda it: it.corrupt, "{} read {} records that are no messages of ours: find out who writes them."),
        (WARNING, lambda it: it.unknown_events, "{} passed over {} events of a newer version: upgrade it, too."),
    ):
        if some := _some(replicas, count):
            return Finding("sources", status, text.format(*some), facts)
    return Finding("sources", OK, "Every replica knows the state of every source.", facts)


def check_gaps(replicas: list[Replica]) -> Finding:
    """No chain lacks a message, and no replica had to correct itself."""
    facts = {it.name: {"gaps": it.gaps, "divergences": it.divergences, "rebuilds": it.rebuilds} for it in replicas}
    if some := _some(replicas, lambda it: it.divergences):
        text = "{} found {} times that its fold and another's differed; it is mended: see DivergenceFound in the log."
        return Finding("gaps", WARNING, text.format(*some), facts)
    if some := _some(replicas, lambda it: it.gaps):
        text = "{} found {} gaps in the chains of sources: messages were lost at the broker; `/state` names them."
        return Finding("gaps", WARNING, text.format(*some), facts)
    return Finding("gaps", OK, "No chain lacks a message.", facts)


def check_log_away(replicas: list[Answer]) -> Finding:
    """Every replica can append."""
    away = {answer.part.name: _number(answer.state, "log_away_s") for answer in replicas}
    gone = {name: seconds for name, seconds in away.items() if seconds}
    if gone:
        name, seconds = max(gone.items(), key=lambda item: item[1])
        text = (
            f"For {name} the log has been away for {seconds_text(seconds)}: requests go on and events wait; look at "
            "NATS, its disk, and the network between them."
        )
        return Finding("log_away", PROBLEM, text, {"log_away_s": away})
    return Finding("log_away", OK, "The log is there for every front end.", {"log_away_s": away})


def check_outboxes(parts: list[Answer]) -> Finding:
    """Little waits to be appended."""
    depths = {answer.part.name: _outbox_events(answer.state) for answer in parts if answer.state is not None}
    deep = {name: depth for name, depth in depths.items() if depth > OUTBOX_EVENTS_WARNING}
    facts = {"outbox_events": depths}
    if deep:
        name, depth = max(deep.items(), key=lambda item: item[1])
        text = f"{number_text(depth)} events of {name} wait to be appended: the log is away or slow for it."
        return Finding("outboxes", WARNING, text, facts)
    most = max(depths.values(), default=0)
    return Finding("outboxes", OK, f"At most {number_text(most)} events of one part wait to be appended.", facts)


def check_journals(replicas: list[Answer]) -> Finding:
    """The journals have room for what is decided while the log is away."""
    shares = {answer.part.name: _journal_share(answer.state) for answer in replicas}
    known = {name: share for name, share in shares.items() if share is not None}
    facts = {"full": shares}
    if not known:
        return Finding("journals", OK, "No front end says how full its journal is.", facts)
    name, share = max(known.items(), key=lambda item: item[1])
    if share < JOURNAL_WARNING:
        return Finding("journals", OK, f"The fullest journal, of {name}, is {share:.0%} full.", facts)
    text = f"The journal of {name} is {share:.0%} full: bring the log back before it has no room for decisions."
    return Finding("journals", PROBLEM if share >= JOURNAL_PROBLEM else WARNING, text, facts)


def _some(replicas: list[Replica], count: Callable[[Replica], int | None]) -> tuple[str, int] | None:
    """The replica with the most, if there are any."""
    name, most = max(((it.name, count(it) or 0) for it in replicas), key=lambda item: item[1])
    return (name, most) if most else None


def _number(state: dict[str, Any] | None, key: str) -> float:
    value = (state or {}).get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _outbox_events(state: dict[str, Any]) -> int:
    outbox = state.get("outbox")
    return int(_number(outbox, "events") if isinstance(outbox, dict) else _number(state, "waiting"))


def _journal_share(state: dict[str, Any] | None) -> float | None:
    journal = (state or {}).get("journal")
    if not isinstance(journal, dict):
        return None
    capacity = _number(journal, "capacity_bytes")
    return _number(journal, "bytes") / capacity if capacity else None
