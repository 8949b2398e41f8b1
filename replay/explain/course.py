"""Course of a request: its time part by part, beside the router's estimates and the pauses of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replay.explain.explanation import AttemptExplanation, Course, CoursePart
from replay.recording.request_history import DECLINED


def request_course(attempts: list[AttemptExplanation]) -> Course | None:
    """The course over all attempts; None where the log lacks the first attempt. The parts follow each other without a
    gap, from the request's arrival at the router to the last thing that the log knows of it."""
    if not attempts or attempts[0].attempt:
        return None
    parts: list[CoursePart] = []
    for attempt in attempts:
        parts += _parts_until(attempt, _ends(attempt), parts[-1].to_ms if parts else 0.0)
    return Course(
        parts=parts,
        expected=[each for tried in attempts for each in _parts_until(tried, _expected(tried), tried.decided_after_ms)],
        pauses=[pause for attempt in attempts for pause in _pauses(attempt)],
        ended=attempts[-1].duration_ms is not None,
    )


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
            yield "prefill", wait + timed.own_ms


def _pauses(attempt: AttemptExplanation) -> Iterator[CoursePart]:
    """The pause of an answer before this attempt went on with it."""
    if attempt.pause_ms is not None and attempt.ttft_ms is not None:
        yield from _parts_until(attempt, [("pause", attempt.ttft_ms)], float(attempt.ttft_ms - attempt.pause_ms))
