"""Course of a request: its time part by part, beside the router's estimates and the pauses of its answer.

An attempt has the stages that its end's record states (`core.events.request_stages`), and without them as many parts as
the log proves: those between the moments of its events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core.events.request_stages import PER_MS, UNREPORTED, RequestStages
from replay.explain.explanation import AttemptExplanation, Course, CoursePart
from replay.recording.request_history import DECLINED

INTAKE = ("loop", "body", "prepare")
"""Stages before the router has the request."""


def course_parts(attempts: list[AttemptExplanation], recorded: list[RequestStages | None]) -> list[list[CoursePart]]:
    """The parts of each attempt; `recorded` has the stages of each, where its record has them. The parts follow each
    other without a gap, and end with the last thing that the log knows of the request."""
    found: list[list[CoursePart]] = []
    end_ms: float | None = None
    for attempt, stages in zip(attempts, recorded, strict=True):
        if stages is None:
            parts = list(_parts_until(attempt, _ends(attempt), _begin_ms(attempt) if end_ms is None else end_ms))
        else:
            parts = list(_stage_parts(attempt, stages, end_ms))
        found.append(parts)
        if parts:
            end_ms = parts[-1].to_ms
    return found


def request_course(attempts: list[AttemptExplanation], parts: list[list[CoursePart]]) -> Course | None:
    """The course over all attempts; None where the log lacks the first attempt."""
    if not attempts or attempts[0].attempt:
        return None
    return Course(
        parts=[part for own in parts for part in own],
        expected=[each for tried in attempts for each in _parts_until(tried, _expected(tried), tried.decided_after_ms)],
        pauses=[pause for attempt in attempts for pause in _pauses(attempt)],
        ended=attempts[-1].duration_ms is not None,
    )


def _begin_ms(attempt: AttemptExplanation) -> float:
    """When the first attempt of the log begins: with the request's arrival, or with the pause that it ended."""
    if attempt.pause_ms is None or attempt.ttft_ms is None:
        return 0.0
    return float(attempt.ttft_ms - attempt.pause_ms)


def _stage_parts(attempt: AttemptExplanation, stages: RequestStages, end_ms: float | None) -> Iterator[CoursePart]:
    """The recorded stages that took time, behind the end of the attempt before; then the wait for a late client. Where
    the worker did not report its engine's queue, that is as long as the log proves."""
    reported = stages.behind != UNREPORTED
    if not reported:
        behind = 0 if attempt.phases is None else min(stages.prefill, attempt.phases.behind_ms * PER_MS)
        stages = stages._replace(behind=behind, prefill=stages.prefill - behind)
    tenths = stages._asdict()
    if end_ms is None:
        end_ms = _begin_ms(attempt) if attempt.attempt else -sum(tenths[name] for name in INTAKE) / PER_MS
    lasting = [(name, each / PER_MS) for name, each in tenths.items() if each > 0]
    if attempt.delay is not None and attempt.delay.written_ms:
        lasting.append(("written", float(attempt.delay.written_ms)))
    for name, ms in lasting:
        begin_ms, end_ms = end_ms, round(end_ms + ms, 1)
        yield CoursePart(
            kind=_kind(name, attempt),
            attempt=attempt.attempt,
            worker=attempt.worker,
            from_ms=begin_ms,
            to_ms=end_ms,
            recorded=reported or name not in {"behind", "prefill"},
        )


def _kind(stage: str, attempt: AttemptExplanation) -> str:
    """The kind of a stage's part: two of them have another meaning by the attempt."""
    if stage == "route" and attempt.attempt:
        return "between"
    return "unanswered" if stage == "link" and attempt.ttft_ms is None else stage


def _parts_until(
    attempt: AttemptExplanation, ends: Iterable[tuple[str, float]], begin_ms: float
) -> Iterator[CoursePart]:
    """The parts that end at these times, one behind the other; a part that would take no time is left out."""
    for kind, end_ms in ends:
        if end_ms > begin_ms:
            yield CoursePart(
                kind=kind, attempt=attempt.attempt, worker=attempt.worker, from_ms=begin_ms, to_ms=float(end_ms)
            )
            begin_ms = float(end_ms)


def _ends(attempt: AttemptExplanation) -> Iterator[tuple[str, float]]:
    """Kinds of parts, and when each ends, in milliseconds from the request's arrival."""
    sent, first, end = attempt.decided_after_ms, attempt.ttft_ms, attempt.duration_ms
    held = 0 if attempt.hold is None else attempt.hold.held_ms or 0
    waited = 0 if attempt.queued is None else attempt.queued.waited_ms or 0
    yield "between", sent - max(waited, held)
    yield "queued", sent - held
    yield "held", sent
    if first is not None:
        behind = sent if attempt.phases is None else sent + attempt.phases.behind_ms
        elsewhere = 0 if attempt.prefill is None else attempt.prefill.wait_ms + attempt.prefill.pull_ms
        yield "behind", behind
        yield "remote", min(first, behind + elsewhere)
        yield "prefill", first
    if end is not None:
        yield "unanswered" if first is None else "decode", end


def _expected(attempt: AttemptExplanation) -> Iterator[tuple[str, float]]:
    """The same of the estimate that the decision stood on; none of a policy that does not estimate, and none of an
    attempt that its worker did not begin with."""
    timed = next((row.timed for row in attempt.candidates if row.chosen), None)
    if timed is not None and attempt.outcome != DECLINED:
        wait = attempt.decided_after_ms + timed.outstanding_ms + timed.held_ms
        yield "behind", wait
        if timed.own_ms is not None:
            yield "prefill", wait + timed.load_ms + timed.own_ms


def _pauses(attempt: AttemptExplanation) -> Iterator[CoursePart]:
    """The pause of an answer before this attempt went on with it."""
    if attempt.pause_ms is not None and attempt.ttft_ms is not None:
        yield from _parts_until(attempt, [("pause", attempt.ttft_ms)], float(attempt.ttft_ms - attempt.pause_ms))
