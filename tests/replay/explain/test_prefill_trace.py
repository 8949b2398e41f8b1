"""Explanations of disaggregated requests: the verdict, the job by its events, and what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from api.debug.decision_view import decision
from api.debug.recording_view import explanation
from core.event_json import message_lines, ranges_text
from core.events import RequestRouted
from core.events.jobs import PrefillPulled
from core.kv_transfer import RECOMPUTED as REASONS
from core.subjects import JOBS, ROUTING
from projections.policy.decide import decide_prefill
from projections.policy.prefill_choice import PREFILL_REASONS, PrefillInputs
from replay.explain import prefill_trace
from replay.explain.explain import explain
from replay.explain.explanation import AttemptExplanation, PrefillJobTrace
from replay.explain.prefill_trace import OUTCOME_TEXTS, verdict_text
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from tests.replay.disagg_run import AGAIN, PREFERRED, PULLED, RECOMPUTED, SHORT, WAIT_MS, WAITING, run_of


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recording]:
    with await run_of(tmp_path_factory.mktemp("disagg") / "log") as recording:
        yield recording


def attempt_of(run: Recording, request: str) -> AttemptExplanation:
    return explain(run, request).attempts[-1]


def job_of(attempt: AttemptExplanation) -> PrefillJobTrace:
    assert attempt.job is not None
    return attempt.job


def test_a_short_prompt(run: Recording) -> None:
    """The verdict with its inputs, and no job."""
    told = attempt_of(run, SHORT)
    assert told.prefill is not None
    assert (told.prefill.remote, told.prefill.reason, told.prefill.outcome) == (False, "short", "")
    assert (told.prefill.uncached_tokens, told.prefill.min_tokens, told.prefill.workers) == (20, 64, 1)
    assert (told.hint, told.job) == (None, None)
    page = render(explain_text(explain(run, SHORT)))
    assert "cache lacked 20 tokens, not more than remote_prefill_min_tokens 64: computed there" in page
    assert "  job " not in page


def test_a_prompt_that_another_computed(run: Recording) -> None:
    """Everything that the log has of it, each with its place: as said by those who did it."""
    told = attempt_of(run, PULLED)
    job, report = job_of(told), told.prefill
    said = next(
        (record.seq, event)
        for record, message in run.messages(JOBS)
        for event in message.events
        if isinstance(event, PrefillPulled) and event.job == job.job
    )
    assert report is not None
    assert (job.ended_seq, job.outcome) == (said[0], "pulled")
    assert (job.blocks, job.bytes, job.tokens, job.transport) == (
        said[1].blocks,
        said[1].bytes,
        700,
        "simulated",
    )
    assert (job.wait_ms, job.pull_ms) == (report.wait_ms, report.pull_ms) == (said[1].wait_ms, said[1].pull_ms)
    assert (job.requester, job.name, report.name) == (told.worker, "prefill-0", "prefill-0")
    (tried,) = job.tries
    assert (tried.attempt, tried.delivery, tried.outcome, tried.used, tried.blocks) == (0, 1, "completed", True, 44)
    assert job.asked_seq is not None
    assert job.ended_seq is not None
    assert tried.started_seq is not None
    assert tried.ended_seq is not None
    assert job.asked_seq < tried.started_seq < tried.ended_seq < job.ended_seq
    assert job.lacks == ""
    page = render(explain_text(explain(run, PULLED)))
    assert "0 jobs waited, fewer than prefill_queue_max 8: it asked others" in page
    assert f"asked for by {told.worker_name} at jobs:{job.asked_seq}" in page
    assert "taken by prefill-0" in page
    assert f"pulled: 44 blocks, 5.5 MiB, from prefill-0 by simulated; {job.wait_ms} ms until the answer" in page
    assert f"of which {job.wait_ms} ms waiting for prefill-0 and {job.pull_ms} ms pulling" in page


def test_a_prefill_worker_that_was_preferred(run: Recording) -> None:
    """The decision says whom, how much it held, and why; it took the job by the offer, and used its cache."""
    told = attempt_of(run, PREFERRED)
    job = job_of(told)
    assert told.again == "same", told.doubts
    assert told.hint is not None
    assert (told.hint.name, told.hint.tokens) == ("prefill-0", 43 * 16)
    assert f"688 of 1300 tokens, and {told.worker_name} none" in told.hint.text
    (tried,) = job.tries
    assert (tried.name, tried.cached_tokens) == ("prefill-0", 688)
    page = render(explain_text(explain(run, PREFERRED)))
    assert "prefer   prefill-0 held most of the prompt among prefill workers" in page
    if tried.delivery == 0:
        assert "offered to it directly" in page


def test_a_prefill_worker_that_died_and_another_that_answered(run: Recording) -> None:
    """Both tries are told, the one in vain with how its worker ended."""
    told = attempt_of(run, AGAIN)
    first, second = job_of(told).tries
    assert (first.attempt, first.outcome, first.used) == (0, "unanswered", False)
    assert first.reason.startswith("lost: ")
    assert (second.attempt, second.outcome, second.used) == (1, "completed", True)
    assert first.worker != second.worker == job_of(told).worker
    page = render(explain_text(explain(run, AGAIN)))
    assert f"{first.name} did not answer, it was lost" in page
    assert f"taken by {second.name} ({second.worker}), attempt 1" in page


def test_a_prompt_that_was_computed_here_after_all(run: Recording) -> None:
    """Its prefill worker crashed, and there was no other: with the deadline, and who had it."""
    told = attempt_of(run, RECOMPUTED)
    job, report = job_of(told), told.prefill
    assert report is not None
    assert (report.remote, report.outcome, report.worker) == (True, "deadline", None)
    assert (job.outcome, job.reason, job.wait_max_ms) == ("cancelled", "deadline", WAIT_MS)
    assert job.wait_ms is not None
    assert job.wait_ms >= WAIT_MS
    assert [each.outcome for each in job.tries] == ["unanswered"]
    assert f"computed by {told.worker_name} after all, which had waited" in report.came
    page = render(explain_text(explain(run, RECOMPUTED)))
    assert f"there was no answer in time; {told.worker_name} computed the prompt itself" in page
    assert "ms waiting in vain for another to compute the prompt" in page


def test_a_worker_that_died_as_it_waited(run: Recording) -> None:
    """No first token came, so nobody says what the job was: it is found by the request, and ended with its worker."""
    first, second = explain(run, WAITING).attempts
    job = job_of(first)
    assert first.prefill is None
    assert first.real_cached_tokens is None
    assert (job.outcome, job.requester) == ("requester_ended", first.worker)
    assert f"{first.worker_name} was lost" in render(explain_text(explain(run, WAITING)))
    assert second.worker != first.worker
    assert job_of(second).job != job.job


async def test_a_jobs_stream_that_does_not_reach_back(tmp_path: Path) -> None:
    with await run_of(tmp_path / "log", expired=True) as recording:
        told = attempt_of(recording, PULLED)
        assert told.prefill is not None
        assert told.prefill.outcome == "pulled"
        job = job_of(told)
        assert "the jobs stream does not reach back to it: it begins at jobs:" in job.lacks
        assert (job.outcome, job.asked_seq, job.tries) == ("open", None, [])
        page = render(explain_text(explain(recording, PULLED)))
        assert job.lacks in page
        assert told.prefill.came in page, "what the report tells is told all the same"


def test_no_more_is_read_than_a_while(run: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is bounded; what lies beyond is said not to be there."""
    monkeypatch.setattr(prefill_trace, "SEARCH_MAX", 1)
    seen = {request: job_of(attempt_of(run, request)) for request in (PULLED, RECOMPUTED)}
    assert all(job.outcome == "open" and job.lacks for job in seen.values())


def test_the_same_without_the_key_and_as_json(run: Recording) -> None:
    """Keys are those that people's scripts rely on."""
    with Recording.open(run.archive.path) as unproved:
        for name in (SHORT, PULLED, PREFERRED, AGAIN, RECOMPUTED, WAITING):
            found = explain(run, name)
            assert explain(unproved, name) == found
            assert msgspec.json.decode(msgspec.json.encode(found)) == msgspec.to_builtins(found)
    (attempt,) = msgspec.to_builtins(explain(run, PULLED))["attempts"]
    assert set(attempt["prefill"]) == {
        *("remote", "reason", "uncached_tokens", "queued", "workers", "min_tokens", "queue_max", "log_away", "busy"),
        *("outcome", "detail", "worker", "name", "pulled_tokens", "wait_ms", "pull_ms", "text", "came"),
    }
    assert set(attempt["job"]) >= {"job", "requester", "asked_seq", "tries", "outcome", "bytes", "transport", "lacks"}


def test_the_page_is_told_the_same(run: Recording) -> None:
    """Of one decision: whom it preferred, as recorded, and all of the explanation."""
    told = attempt_of(run, PREFERRED)
    place = next(
        record.seq * PLACES + i
        for record, message in run.messages(ROUTING)
        for i, event in enumerate(message.events)
        if isinstance(event, RequestRouted) and event.request == PREFERRED
    )
    shown = explanation(run, PREFERRED, place, told.attempt)
    assert shown["known"]
    assert shown["prefill"]["text"] == told.prefill.text if told.prefill else False
    assert (shown["hint"]["name"], shown["job"]["outcome"]) == ("prefill-0", "pulled")
    found = decision(run.archive, _Nowhere(), place)  # type: ignore[arg-type]
    assert told.hint is not None
    assert (found["prefer"], found["prefer_tokens"]) == (told.hint.worker, 688)


class _Nowhere:
    """A timeline that knows no decision: then everything is told from the record alone."""

    settings: ClassVar[dict[tuple[int, int], dict[str, object]]] = {}

    @property
    def decisions(self) -> _Nowhere:
        return self

    @property
    def history(self) -> _Nowhere:
        return self

    def row(self, n: int) -> int | None:
        del n
        return None


def test_events_are_shown_for_people(run: Recording) -> None:
    """Thousands of block ids as a few ranges, and a report with all its keys."""
    lines = [line for record, m in run.messages(JOBS) for line in message_lines(JOBS, record.seq, record.time_ms, m)]
    completed = next(line for line in lines if line["type"] == "PrefillCompleted")
    assert set(completed["blocks"]) == {"request", "tokens", "ids"}
    assert all(isinstance(group, str) for group in completed["blocks"]["ids"])
    assert isinstance(next(line for line in lines if line["type"] == "PrefillPulled")["blocks"], int)
    assert ranges_text([0, 1, 2, 7, 9, 8]) == "0-2,7,9,8"
    assert ranges_text([]) == ""
    said = [
        line for record, m in run.messages(ROUTING) for line in message_lines(ROUTING, record.seq, record.time_ms, m)
    ]
    report = next(line["prefill"] for line in said if line["type"] == "RequestPrefilled")
    assert set(report) >= {"remote", "reason", "log_away", "job", "outcome"}
    msgspec.json.encode([lines, said])


def test_every_verdict_and_every_ending_has_words() -> None:
    """Each names what decided it."""
    asked = PrefillInputs(uncached_tokens=65, queued=2, workers=3, min_tokens=64, queue_max=8)
    cases = (
        (asked, "fewer than prefill_queue_max 8: it asked others"),
        (asked._replace(uncached_tokens=64), "64 tokens, not more than remote_prefill_min_tokens 64"),
        (asked._replace(workers=0), "no prefill worker could take it"),
        (asked._replace(queued=8), "8 jobs waited, and prefill_queue_max is 8"),
        (asked._replace(log_away=True), "the log acknowledged nothing"),
        (asked._replace(busy=True), "on their way to it for another request"),
    )
    reports = [decide_prefill(inputs) for inputs, _ in cases]
    assert {report.reason for report in reports} == set(PREFILL_REASONS)
    for report, (_, words) in zip(reports, cases, strict=True):
        assert words in verdict_text(report, "decode-0")
    assert OUTCOME_TEXTS.keys() >= {"pulled", "client_gone", *REASONS}
    unknown = msgspec.structs.replace(reports[0], reason="of_the_future")
    assert "of the future" in verdict_text(unknown, "decode-0")
