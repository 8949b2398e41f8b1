"""Planner view: the decisions on the size of the fleet in a recording, as rows over time, and one of them explained."""

from __future__ import annotations

from typing import Any

from core.errors import CallerError
from core.events.scale import ScaleDecided
from core.subjects import SCALE
from replay.explain.scale_explainer import ScaleExplainer
from replay.explain.scale_explanation import as_objects
from replay.recording.recording import Recording
from replay.recording.scale_stream import ScalePlace

ROWS_MAX = 2_000
"""Messages that one answer reads: some 80 ms."""
MILLI = 1000
ALL_BP = 10_000


def planner_rows(recording: Recording, after: int) -> dict[str, Any]:
    """Rows of the decisions behind that message of the scale stream, oldest first. `last` is the message up to which
    they are read; `more` is true if there are others behind it."""
    rows: list[dict[str, Any]] = []
    if SCALE not in recording.archive.streams:
        return {"rows": rows, "last": after, "more": False}
    end = after + ROWS_MAX + 1
    for record, message in recording.messages(SCALE, after + 1, end):
        rows += (_row(record.seq, event) for event in message.events if isinstance(event, ScaleDecided))
    last_seq = recording.archive.span(SCALE).last_seq
    return {"rows": rows, "last": min(end - 1, last_seq), "more": end <= last_seq}


def planner_decision(
    recording: Recording, seq: int, model: str | None = None, role: str | None = None
) -> dict[str, Any]:
    """The explanation of the decision of that message, or of the last one before it, as `contrail explain scale` has
    it; with a model, of that on the model, and with a role, of that on workers of the role. Reads the stream from its
    start: some 50 us a message. CallerError if there is none."""
    explainer = ScaleExplainer(ScalePlace(seq=seq), model, role)
    if SCALE in recording.archive.streams:
        for record, message in recording.messages(SCALE):
            explainer.add(record.seq, message.events)
            if explainer.is_done:
                break
    found = explainer.explanation()
    if found is None:
        raise CallerError("there is no such decision in this recording")
    explained: dict[str, Any] = as_objects(found)
    return explained


def _row(seq: int, decided: ScaleDecided) -> dict[str, Any]:
    predicted = [each.attainment_bp for each in decided.candidates if each.workers == decided.target]
    return {
        "seq": seq,
        "ms": decided.at_ms,
        "ready": decided.ready,
        "starting": decided.starting + decided.overdue,
        "target": decided.target,
        "rate": decided.rate_m / MILLI,
        "forecast": decided.forecast.upper_m / MILLI,
        "predicted": predicted[0] / ALL_BP if predicted else None,
        "bound": decided.bound,
        **({"model": decided.model} if isinstance(decided.model, str) else {}),
        **({"role": decided.role} if isinstance(decided.role, str) else {}),
    }
