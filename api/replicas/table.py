"""The replicas as a table."""

from __future__ import annotations

from api.amounts import UNKNOWN, bytes_text, number_text
from api.replicas.comparison import Verdict
from api.replicas.replica import Replica
from api.text_table import text_table

HEADS = (
    "replica",
    "id",
    "cursor",
    "lag",
    "lag ms",
    "digest",
    "events/s",
    "memory",
    "fold",
    "in flight",
    "waiting",
    "gaps",
    "agrees",
)
ALIGN = "<<>>><>>>>>><"


def replicas_text(replicas: list[Replica], verdict: Verdict, *, streams: bool) -> str:
    """The table, and below it whether they agree; with `streams` each one's cursor by stream."""
    lines = text_table(HEADS, [_row(it) for it in replicas], ALIGN)
    if streams:
        lines += ["", *map(_cursor, (it for it in replicas if it.answered))]
    lines += [""] if replicas else []
    lines += [f"{it.name} ({it.id}) {it.why}" for it in replicas if not it.answered]
    return "\n".join([*lines, _judged(replicas, verdict)])


def _judged(replicas: list[Replica], verdict: Verdict) -> str:
    if not replicas:
        return "no replica is registered: start one with `contrail up` or `contrail frontend`"
    if verdict.agree is None:
        return f"not comparable yet: {verdict.text}"
    names = {it.id: it.name for it in replicas}
    differ = ", ".join(sorted(names[who] for who in verdict.wrong))
    return f"agree: {verdict.text}" if verdict.agree else f"differ ({differ}): {verdict.text}"


def _row(it: Replica) -> tuple[str, ...]:
    if not it.answered:
        return (it.name, it.id, *[UNKNOWN] * (len(HEADS) - 3), "no answer")
    agrees = {True: "yes", False: "NO", None: "not comparable yet"}[it.agrees]
    return (
        it.name,
        it.id,
        number_text(it.applied),
        number_text(it.lag_events),
        UNKNOWN if it.lag_ms is None else f"{it.lag_ms:,.1f}",
        it.digest or UNKNOWN,
        number_text(it.events_per_s),
        bytes_text(it.rss_bytes),
        number_text(it.fold_version),
        number_text(it.in_flight),
        number_text(it.waiting),
        number_text(it.gaps),
        agrees,
    )


def _cursor(it: Replica) -> str:
    return f"{it.name}  " + "  ".join(f"{stream}:{seq}" for stream, seq in sorted(it.cursor.items()))
