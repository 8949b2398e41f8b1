"""Checks of the processes (answers, lag, gaps, outboxes, journals) and of the workers (equal models, recent loads).

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from actors.membership.registration import Registration
from api.cli.doctor.finding import Finding
from api.cli.inspect.replica_state import ReplicaStatus, replica_status
from api.cli.process_query import ProcessReply
from api.cli.quantities import count_text, offset_text, plural, seconds_text
from api.cli.renderer import OK, PROBLEM, WARNING
from core.event_json import time_text
from core.events.kv import PREFILL

LAG_EVENTS_WARNING = 10_000
LAG_MS_WARNING = 5_000.0
OUTBOX_EVENTS_WARNING = 10_000
CLOCK_WARNING_MS = 1000
"""An offset from here on is no jitter of a clock that follows NTP."""
JOURNAL_WARNING, JOURNAL_PROBLEM = 0.5, 0.9
"""Shares of the journal's capacity."""
IN_FLIGHT_PROBLEM = 2
"""Checks with a difference from which on chance is excluded, and the program is at fault."""


def check_processes(replicas: list[ProcessReply], workers: list[ProcessReply]) -> Iterator[Finding]:
    """The findings on the replies of all registered processes."""
    found = [replica_status(answer) for answer in replicas]
    there = [it for it in found if it.answered]
    yield check_answers(replicas, workers)
    if there:
        yield check_lag(there)
        yield check_unknown(there)
        yield check_foreign(replicas)
        yield check_gaps(there)
        yield check_in_flight(replicas)
    yield check_log_away(replicas)
    yield check_outboxes([*replicas, *workers])
    yield check_journals(replicas)
    yield check_dropped(replicas)
    yield check_clocks([*replicas, *workers])
    yield check_link([*replicas, *workers])


def check_answers(replicas: list[ProcessReply], workers: list[ProcessReply]) -> Finding:
    """Each process with a lease answers, except one that crashed and has a successor: its lease ends in seconds."""
    processes = [*replicas, *workers]
    old = [*_succeeded(replicas), *_succeeded(workers)]
    silent = [answer for answer in processes if answer.state is None and answer not in old]
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
        whys = "; ".join(f"{answer.part.name} {answer.why}" for answer in silent[:3])
        do = plural(len(silent), "does", "do")
        text = f"{len(silent)} of {len(processes)} that hold a lease {do} not answer: {whys}; see their logs."
        return Finding("leases", PROBLEM, text, facts)
    holders = f"{count_text(len(replicas), 'front end')} and {count_text(len(workers), 'worker')}"
    text = f"{holders} hold a lease, and all answer."
    if old:
        names = ", ".join(dict.fromkeys(answer.part.name for answer in old))
        text = (
            f"{len(processes) - len(old)} of {len(processes)} that hold a lease answer; the others do not, and a later "
            f"process of the same name does ({names}): if they crashed, their leases end by themselves within seconds."
        )
    return Finding("leases", OK, text, facts)


def _succeeded(answers: list[ProcessReply]) -> list[ProcessReply]:
    """Silent processes with a successor: a later process of the same name answers."""
    lives = {answer.part.name: answer.part.revision for answer in answers if answer.state is not None}
    return [it for it in answers if it.state is None and it.part.revision < lives.get(it.part.name, 0)]


def check_lag(replicas: list[ReplicaStatus]) -> Finding:
    """Every replica has folded the log up to now, or nearly so."""
    facts = {it.name: {"lag_events": it.lag_events, "lag_ms": it.lag_ms} for it in replicas}
    late = [
        it.name for it in replicas if (it.lag_events or 0) > LAG_EVENTS_WARNING or (it.lag_ms or 0.0) > LAG_MS_WARNING
    ]
    if late:
        text = f"{', '.join(late)} is far behind the log: give it more CPU, or fewer requests, until it has caught up."
        return Finding("lag", WARNING, text, facts)
    most = max((it.lag_events or 0 for it in replicas), default=0)
    if unknown := [it.name for it in replicas if it.lag_events is None]:
        return Finding("lag", OK, f"{', '.join(unknown)} does not say how far behind the log it is.", facts)
    text = f"By its own account, no replica that answers is more than {count_text(most, 'message')} behind the log."
    return Finding("lag", OK, text, facts)


def check_unknown(replicas: list[ReplicaStatus]) -> Finding:
    """By its own account, every replica that answers knows the state of every source, and reads every event."""
    facts = {
        it.name: {"incomplete": it.incomplete, "corrupt": it.corrupt, "unknown_events": it.unknown_events}
        for it in replicas
    }
    if some := _some(replicas, lambda it: it.incomplete):
        name, count = some
        until = plural(count, "it restates itself", "they restate themselves")
        text = f"{name} does not know the state of {count} {plural(count, 'source')} until {until}."
        return Finding("sources", WARNING, text, facts)
    if some := _some(replicas, lambda it: it.corrupt):
        name, count = some
        ours, them = plural(count, "is no message", "are no messages"), plural(count, "it", "them")
        text = f"{name} read {count} {plural(count, 'record')} that {ours} of ours: find out who writes {them}."
        return Finding("sources", WARNING, text, facts)
    if some := _some(replicas, lambda it: it.unknown_events):
        name, count = some
        text = f"{name} passed over {count} {plural(count, 'event')} of a newer version: upgrade it, too."
        return Finding("sources", WARNING, text, facts)
    return Finding(
        "sources",
        OK,
        "No replica that answers lacks the state of a source of the log, or passed over a message.",
        facts,
    )


def check_foreign(replicas: list[ProcessReply]) -> Finding:
    """No replica reads a chain that another key sealed."""
    by_replica = {it.part.name: _texts(it.state.get("foreign_sources")) for it in replicas if it.state is not None}
    sources = sorted({source for found in by_replica.values() for source in found})
    facts = {"foreign_sources": by_replica}
    if sources:
        text = (
            f"{count_text(len(sources), 'source')} in the log ({', '.join(sources[:3])}) "
            f"{plural(len(sources), 'writes', 'write')} under another key than this deployment's: another deployment "
            "shares the namespace; stop it, and give it a --namespace of its own, or this deployment's key. Gaps that "
            "front ends find in these chains are no lost messages. A source of this deployment stands here, too, from "
            "a changed message to its next one."
        )
        return Finding("foreign_sources", PROBLEM, text, facts)
    return Finding("foreign_sources", OK, "Every chain that goes on is sealed with this deployment's key.", facts)


def check_gaps(replicas: list[ReplicaStatus]) -> Finding:
    """No replica that answers found a chain that lacks a message."""
    facts = {it.name: {"gaps": it.gaps, "divergences": it.divergences, "rebuilds": it.rebuilds} for it in replicas}
    if some := _some(replicas, lambda it: it.gaps):
        found = f"{some[0]} found {some[1]} {plural(some[1], 'gap')} in the chains of sources"
        text = (
            f"{found}: messages there do not follow on each other; some were deleted, lost or never stored by the "
            "broker, or are sealed with another key; `/state` names them."
        )
        return Finding("gaps", WARNING, text, facts)
    return Finding("gaps", OK, "No replica that answers found a gap in a chain since it started.", facts)


def check_in_flight(replicas: list[ProcessReply]) -> Finding:
    """No replica had requests in flight counted wrong."""
    damaged = {it.part.name: int(_number(it.state, "in_flight_damaged")) for it in replicas if it.state is not None}
    differences = {it.part.name: _texts((it.state or {}).get("in_flight_differences")) for it in replicas}
    facts = {"damaged": damaged, "differences": differences}
    name, times = max(damaged.items(), key=lambda item: item[1])
    if not times:
        return Finding("in_flight", OK, "No check found requests in flight that were counted wrong.", facts)
    newest = "; ".join(differences[name][-1:]) or "`/state` names them"
    text = (
        f"{name} had counted requests in flight wrong in {count_text(times, 'check')} ({newest}), and counted them "
        "anew; its decisions between may not follow from the log: ask `contrail replay verify`, and report it with an "
        "export."
    )
    return Finding("in_flight", PROBLEM if times >= IN_FLIGHT_PROBLEM else WARNING, text, facts)


def check_log_away(replicas: list[ProcessReply]) -> Finding:
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
    return Finding("log_away", OK, "No front end that answers waits for the log.", {"log_away_s": away})


def check_outboxes(parts: list[ProcessReply]) -> Finding:
    """Few events wait to be appended."""
    depths = {answer.part.name: _outbox_events(answer.state) for answer in parts if answer.state is not None}
    deep = {name: depth for name, depth in depths.items() if depth > OUTBOX_EVENTS_WARNING}
    facts = {"outbox_events": depths}
    if deep:
        name, depth = max(deep.items(), key=lambda item: item[1])
        text = f"{count_text(depth, 'event')} of {name} wait to be appended: the log is away or slow for it."
        return Finding("outboxes", WARNING, text, facts)
    most = max(depths.values(), default=0)
    return Finding(
        "outboxes",
        OK,
        f"At most {count_text(most, 'event')} of one part that answers {plural(most, 'waits', 'wait')} to be appended.",
        facts,
    )


def check_journals(replicas: list[ProcessReply]) -> Finding:
    """The journals have room for decisions made while the log is away."""
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


def check_dropped(replicas: list[ProcessReply]) -> Finding:
    """No decision was dropped by a replica that answers, nor by another, as replicas read in the log."""
    dropped: dict[str, dict[str, Any]] = {}
    for answer in replicas:
        own = {**_dict(answer.state, "dropped"), "replica": answer.part.id, "name": answer.part.name}
        for each in [*(answer.state or {}).get("dropped_in_log", []), own]:
            known = dropped.get(each["replica"], {})
            if count := max(each.get("decisions") or 0, known.get("decisions", 0)):
                dropped[each["replica"]] = {**known, **each, "decisions": count}
    if not dropped:
        return Finding("dropped", OK, "No front end dropped a decision, as far as they know.", {"dropped": {}})
    most = max(dropped.values(), key=lambda each: int(each["decisions"]))
    count, total = most["decisions"], sum(each["decisions"] for each in dropped.values())
    away = ""
    if most.get("from_ms") and most.get("to_ms"):
        away = f" between {time_text(most['from_ms'])} and {time_text(most['to_ms'])} by the clock of {most['name']}"
    further = f", and {total - count:,} of others" if total > count else ""
    text = (
        f"{count_text(count, 'decision')} of {most['name']}{further} {plural(total, 'was', 'were')} dropped{away}: "
        f"{plural(total, 'it is', 'they are')} in no log; give frontend.journal_max more, or bring the log back sooner."
    )
    return Finding("dropped", WARNING, text, {"dropped": dropped})


def check_clocks(parts: list[ProcessReply]) -> Finding:
    """No clock is far off the broker's, as the processes that answer measure it."""
    known = {answer.part.name: clock for answer in parts if (clock := _dict(answer.state, "clock")).get("known")}
    offsets = {name: int(clock["offset_ms"]) for name, clock in known.items()}
    facts = {"offset_ms": offsets}
    refused = [answer.part.name for answer in parts if _dict(answer.state, "clock").get("refused")]
    if refused:
        text = f"{refused[0]} does not follow the broker's time, which is a day or more off its own: set both by NTP."
        return Finding("clocks", PROBLEM, text, facts)
    if not offsets:
        return Finding("clocks", OK, "No process says how far its clock is off the broker's.", facts)
    name, most_ms = max(offsets.items(), key=lambda item: abs(item[1]))
    if abs(most_ms) < CLOCK_WARNING_MS:
        text = f"Clocks are at most {abs(most_ms)} ms off the broker's, as {count_text(len(offsets), 'process')} say."
        return Finding("clocks", OK, text, facts)
    text = (
        f"The clock of {name} is {offset_text(most_ms)}: decisions are corrected by that, ages that people read are "
        "not; let it follow NTP."
    )
    return Finding("clocks", WARNING, text, facts)


def check_link(parts: list[ProcessReply]) -> Finding:
    """No part admits the handshake of the version before, and all of them have TLS, or none has."""
    found = {it.part.name: it.state["link"] for it in parts if it.state and isinstance(it.state.get("link"), dict)}
    until = {name: end for name, link in found.items() if (end := link.get("old_handshake_until"))}
    facts = {"link": found}
    if until:
        name, end = max(until.items(), key=lambda item: str(item[1]))
        text = (
            f"{name} admits the handshake of the version before until {end}: a program that takes the port of a worker "
            "can read prompts meanwhile; remove link.old_handshake_until when all parts are upgraded."
        )
        return Finding("link", WARNING, text, facts)
    in_clear = sorted(name for name, link in found.items() if not link.get("tls"))
    if in_clear and len(in_clear) < len(found):
        text = f"{', '.join(in_clear)} has no link.tls, and other parts have: give it to all, else they cannot connect."
        return Finding("link", PROBLEM, text, facts)
    if not found:
        return Finding("link", OK, "No part that answers says how it connects to others.", facts)
    how = "in clear" if in_clear else "over TLS"
    text = f"Of {count_text(len(found), 'part')} that say so, both ends of each connection prove themselves, {how}."
    return Finding("link", OK, text, facts)


def _some(replicas: list[ReplicaStatus], count: Callable[[ReplicaStatus], int | None]) -> tuple[str, int] | None:
    """The replica with the highest count, and the count; None if all are 0."""
    name, most = max(((it.name, count(it) or 0) for it in replicas), key=lambda item: item[1])
    return (name, most) if most else None


def _number(state: dict[str, Any] | None, key: str) -> float:
    value = (state or {}).get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _dict(state: dict[str, Any] | None, key: str) -> dict[str, Any]:
    value = (state or {}).get(key)
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _outbox_events(state: dict[str, Any]) -> int:
    outbox = state.get("outbox")
    return int(_number(outbox, "events") if isinstance(outbox, dict) else _number(state, "waiting"))


def _journal_share(state: dict[str, Any] | None) -> float | None:
    journal = _dict(state, "journal")
    capacity = _number(journal, "capacity_bytes")
    return _number(journal, "bytes") / capacity if capacity else None


STALE_S = 6.0
"""A worker reports its load every two seconds at least."""


def check_workers(
    registrations: dict[str, Registration | None], load_ages_s: dict[str, float | None]
) -> Iterator[Finding]:
    """By worker name: its registration (None: unreadable), and the age of its last load report in the log."""
    serving = {name: it for name, it in registrations.items() if it is None or it.role != PREFILL}
    yield _alike(serving)
    if len(serving) < len(registrations):
        yield _prefill_use(registrations)
    yield _stale(load_ages_s)


def _prefill_use(registrations: dict[str, Registration | None]) -> Finding:
    """Each prefill worker has a decode worker that can take its blocks."""
    known = {name: it for name, it in registrations.items() if it is not None and it.kv is not None}
    usable = {(it.model, it.block_size, it.kv.layout) for it in known.values() if it.role != PREFILL and it.kv}
    there = {name: it for name, it in known.items() if it.role == PREFILL}
    idle = sorted(n for n, it in there.items() if it.kv and (it.model, it.block_size, it.kv.layout) not in usable)
    facts = {"prefill_workers": sorted(there), "of_no_use": idle}
    if idle:
        text = (
            f"No decode worker can take the blocks of {', '.join(idle)}: start decode workers of the same model, block "
            "size and engine with --remote-prefill, or stop these."
        )
        return Finding("prefill_workers", WARNING, text, facts)
    return Finding("prefill_workers", OK, "Every prefill worker's blocks are of use to a decode worker.", facts)


def _alike(registrations: dict[str, Registration | None]) -> Finding:
    unreadable = sorted(name for name, it in registrations.items() if it is None)
    kinds: dict[str, dict[tuple[str, int, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, it in registrations.items():
        if it is not None:
            kinds[it.model][it.kind].append(name)
    facts = {
        model: [
            {"engine": engine, "block_size": block_size, "context_max": context_max, "workers": sorted(names)}
            for (engine, block_size, context_max), names in by_kind.items()
        ]
        for model, by_kind in kinds.items()
    }
    if unreadable:
        text = f"{', '.join(unreadable)} registered nothing that can be read: it is of another version; restart it."
        return Finding("models", PROBLEM, text, facts)
    if odd := _odd(kinds):
        model, names = odd
        text = (
            f"Workers of model {model} differ in engine, block size or context ({', '.join(names)}): front ends do "
            "not admit those that differ from the first; start them alike."
        )
        return Finding("models", PROBLEM, text, facts)
    if not kinds:
        return Finding("models", OK, "There is no worker whose model could be compared.", facts)
    models = ", ".join(f"{model} at {next(iter(by_kind))[1]} tokens per block" for model, by_kind in kinds.items())
    text = f"Workers of one model are alike: {models}; the hash seed comes from the one key that all must have."
    return Finding("models", OK, text, facts)


def _odd(kinds: dict[str, dict[tuple[str, int, int], list[str]]]) -> tuple[str, list[str]] | None:
    """The first model with workers of several kinds, and its workers of the rarer kinds; None without one."""
    for model, by_kind in kinds.items():
        if len(by_kind) > 1:
            usual = max(by_kind.values(), key=len)
            return model, sorted(name for names in by_kind.values() if names is not usual for name in names)
    return None


def _stale(load_ages_s: dict[str, float | None]) -> Finding:
    stale = sorted(name for name, age_s in load_ages_s.items() if age_s is None or age_s > STALE_S)
    facts = {"heard_s": {name: None if age is None else round(age, 1) for name, age in load_ages_s.items()}}
    if stale:
        ages = [load_ages_s[name] for name in stale]
        longest = "never" if None in ages else f"for {seconds_text(max(age for age in ages if age is not None))}"
        text = (
            f"{', '.join(stale)} has not said its load in the log ({longest}, by the broker's clock): see whether it "
            "lives and reaches NATS."
        )
        return Finding("workers_heard", WARNING, text, facts)
    text = (
        f"By the broker's clock, each worker's load in the log is at most {STALE_S:g} s old."
        if load_ages_s
        else "There is no worker to hear of."
    )
    return Finding("workers_heard", OK, text, facts)
