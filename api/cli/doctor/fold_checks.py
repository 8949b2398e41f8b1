"""Checks of the folds of replicas: their digests now and before, and the audits of their indexes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from actors.consistency.index_audit_schedule import DIFFERS, EQUAL
from api.cli.doctor.finding import Finding
from api.cli.inspect.replica_state import ReplicaStatus
from api.cli.inspect.replicas import ReplicaOverview
from api.cli.process_query import ProcessReply
from api.cli.quantities import count_text, plural
from api.cli.renderer import OK, PROBLEM, WARNING


def check_agreement(found: ReplicaOverview) -> Finding:
    """The comparison of `contrail replicas`, and the mismatches that the replicas found before."""
    there = [it for it in found.replicas if it.answered]
    facts = {
        "agree": found.verdict.agree,
        **{
            it.name: {"divergences": it.divergences, "unexplained": it.unexplained, "disputed": it.disputed}
            for it in there
        },
    }
    now = _now(found)
    if found.verdict.agree is False:
        return Finding("agreement", PROBLEM, f"{now} {before}".rstrip() if (before := _before(there)) else now, facts)
    if any(it.unexplained or it.disputed for it in there):
        return Finding("agreement", PROBLEM, f"{_before(there)} {now}", facts)
    if any(it.divergences for it in there):
        return Finding("agreement", WARNING, f"{_before(there)} {now}", facts)
    return Finding("agreement", OK, now, facts)


def _now(found: ReplicaOverview) -> str:
    """The result of the comparison just made."""
    verdict = found.verdict
    if verdict.agree:
        return f"Compared now, {verdict.text}."
    if verdict.agree is None:
        return f"Whether folds are equal now was not seen: {verdict.text}."
    names = ", ".join(sorted(it.name for it in found.replicas if it.id in verdict.wrong))
    return f"Folds differ now ({names}): {verdict.text}; keep their data folders, and report it with an export."


def _before(replicas: list[ReplicaStatus]) -> str:
    """The mismatches that replicas found since they started; empty if none did."""
    open_, unexplained = _most(replicas, "disputed"), _most(replicas, "unexplained")
    if open_ is not None:
        streams = plural(open_.disputed or 0, "stream")
        return (
            f"{open_.name} has found another fold than its own in {open_.disputed} {streams}, and no end of that yet."
        )
    if unexplained is not None:
        count = count_text(unexplained.unexplained or 0, "time")
        return (
            f"{unexplained.name} found {count} that another replica's fold was not that of the log, which the other "
            "one never said: the log or the code is at fault (DivergenceFound in the log)."
        )
    if (found := _most(replicas, "divergences")) is not None:
        count = count_text(found.divergences or 0, "time")
        return f"{found.name} found {count} since it started that its fold and another's differed."
    return ""


def _most(replicas: list[ReplicaStatus], count: str) -> ReplicaStatus | None:
    """The replica with the highest count; None if all are 0 or unknown."""
    most = max(replicas, key=lambda it: getattr(it, count) or 0, default=None)
    return most if most is not None and getattr(most, count) else None


def check_index(replicas: list[ProcessReply]) -> Finding:
    """No audit found blocks in an index that the log's events did not give."""
    audits: dict[str, dict[str, Any]] = {
        it.part.name: audit for it in replicas if it.state and isinstance(audit := it.state.get("index_audit"), dict)
    }
    facts = {"audits": audits}
    wrong = {name: audit for name, audit in audits.items() if audit.get("differences")}
    checks = sum(int(audit.get("checks", 0)) for audit in audits.values())
    if not wrong:
        if not checks:
            return Finding("index", OK, "No replica that answers has audited its index yet.", facts)
        text = f"No difference in {count_text(checks, 'audit')} by {count_text(len(audits), 'replica')}."
        return Finding("index", OK, text, facts)
    name, audit = max(wrong.items(), key=lambda item: int(item[1]["differences"]))
    times = count_text(int(audit["differences"]), "audit")
    text = f"In {times} the index of {name} differed from the log's events"
    named = Counter(worker for each in wrong.values() for worker in set(each.get("workers", ())))
    shared = [worker for worker, replicas_ in named.items() if replicas_ > 1]
    if audit.get("after_rebuild") == DIFFERS:
        cause, status = "one folded anew differs, too: the code is wrong; report it with an export", PROBLEM
    elif shared:
        cause, status = "it did in other replicas for the same worker: the code is wrong; report it", PROBLEM
    elif audit.get("after_rebuild") == EQUAL:
        cause = "one folded anew does not: damaged memory, or code that is wrong only after some history"
        status = WARNING
    else:
        cause, status = "none was folded anew after the newest one, and the cause is not known; restart it", PROBLEM
    return Finding("index", status, f"{text}; {cause}.", facts)
