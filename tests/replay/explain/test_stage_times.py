"""The recorded stages in an explanation: as its course, beside other prefills, and with a client that is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.events import AnswerDelayed, RequestFinished, RequestPrefilled
from core.events.request_stages import UNREPORTED, RequestStages
from core.events.routing import PROGRESS_VERSION
from replay.excerpt.excerpt_export import write_excerpt
from replay.explain.explain import explain
from replay.explain.explanation import AnswerDelay, ConcurrentPrefill, Explanation
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from streams.archive.archive_reader import ArchiveReader
from tests.projections.facts import prompt
from tests.replay.staged import ASKED, KEY, Stage

NEIGHBOUR = prompt(60, 61)
STAGES = RequestStages(loop=10, body=20, prepare=70, queued=100, link=10, behind=290, prefill=600, decode=1000)
"""10 ms before the router had it, 10 ms in its queue; the first token after 100 ms, the last after 200."""
DELAYED = AnswerDelayed(request="r", written_ms=45, stalled_ms=40, unsent_bytes=900)


def first(request: str, ttft_ms: int) -> RequestPrefilled:
    return RequestPrefilled(request=request, attempt=0, cached_tokens=16, ttft_ms=ttft_ms, v=PROGRESS_VERSION)


def ended(request: str, stages: tuple[int, ...] = STAGES) -> RequestFinished:
    return RequestFinished(
        request=request, attempt=0, outcome="stop", prompt_tokens=25, output_tokens=9, cached_tokens=16, ttft_ms=100,
        duration_ms=200, v=PROGRESS_VERSION, stages=stages,
    )  # fmt: skip


def alone(stage: Stage, stages: tuple[int, ...] = STAGES) -> None:
    """The request `r` without another one."""
    stage.clock.advance(10)
    stage.route("r", ASKED)
    stage.clock.advance(90)
    stage.tell(first("r", 100))
    stage.clock.advance(100)
    stage.tell(ended("r", stages))


def explained(stage: Stage, tmp_path: Path) -> Explanation:
    with stage.recording(tmp_path / "log") as recording:
        return explain(recording, "r")


def spans(found: Explanation) -> list[tuple[str, float, float, bool]]:
    assert found.course is not None
    return [(part.kind, part.from_ms, part.to_ms, part.recorded) for part in found.course.parts]


WHOLE = [
    ("loop", -10.0, -9.0, True),
    ("body", -9.0, -7.0, True),
    ("prepare", -7.0, 0.0, True),
    ("queued", 0.0, 10.0, True),
    ("link", 10.0, 11.0, True),
    ("behind", 11.0, 40.0, True),
    ("prefill", 40.0, 100.0, True),
    ("decode", 100.0, 200.0, True),
]


def test_they_are_the_course_of_the_request(stage: Stage, tmp_path: Path) -> None:
    """It begins before the router has the request, and ends with a late client."""
    alone(stage)
    stage.clock.advance(45)
    stage.tell(DELAYED)
    found = explained(stage, tmp_path)
    assert spans(found) == [*WHOLE, ("written", 200.0, 245.0, True)]
    assert found.attempts[0].delay == AnswerDelay(written_ms=45, stalled_ms=40, unsent_bytes=900)
    assert found.summary[0].startswith("First token after 110 ms, 55 % of it computing 9 tokens of its prompt on a")


def test_a_client_that_reads_late_is_the_cause(stage: Stage, tmp_path: Path) -> None:
    alone(stage)
    stage.tell(AnswerDelayed(request="r", written_ms=790, stalled_ms=700, unsent_bytes=65_000))
    assert explained(stage, tmp_path).summary[0] == (
        "The client had the answer after 1,000 ms, 79 % of it behind the last token: it was slow to read (65,000 bytes "
        "waited for it)."
    )


def test_without_a_record_the_course_is_what_the_log_proves(stage: Stage, tmp_path: Path) -> None:
    """The same log as of an earlier program: no stage is invented."""
    alone(stage, ())
    found = explained(stage, tmp_path)
    assert spans(found) == [("prefill", 0.0, 100.0, False), ("decode", 100.0, 200.0, False)]
    assert not found.attempts[0].concurrent
    assert found.attempts[0].delay is None


def test_a_queue_that_the_worker_did_not_report_is_as_long_as_the_log_proves(stage: Stage, tmp_path: Path) -> None:
    """Its prefill begins with the first token of the one before it."""
    stage.route("one", NEIGHBOUR)
    stage.route("r", ASKED)
    stage.clock.advance(30)
    stage.tell(first("one", 30))
    stage.clock.advance(70)
    stage.tell(first("r", 100))
    stage.clock.advance(100)
    stage.tell(ended("r", RequestStages(behind=UNREPORTED, prefill=1000, decode=1000)))
    assert spans(explained(stage, tmp_path)) == [
        ("behind", 0.0, 30.0, False),
        ("prefill", 30.0, 100.0, False),
        ("decode", 100.0, 200.0, True),
    ]


@pytest.mark.parametrize(
    ("of_one", "certain"),
    [
        pytest.param(RequestStages(link=10, prefill=890), True, id="its window meets the other one's"),
        pytest.param(RequestStages(link=10, prefill=200, decode=690), False, id="it was computed before"),
        pytest.param(RequestStages(link=880, prefill=20), False, id="its way may have been all of the time"),
        pytest.param((), False, id="its program recorded no stages"),
    ],
)
def test_another_prefill_is_a_fact_only_where_the_records_prove_it(
    stage: Stage, tmp_path: Path, of_one: tuple[int, ...], *, certain: bool
) -> None:
    stage.clock.advance(10)
    stage.route("one", NEIGHBOUR)
    stage.route("r", ASKED)
    stage.clock.advance(90)
    stage.tell(first("one", 90), first("r", 100))
    stage.tell(ended("one", of_one))
    stage.clock.advance(100)
    stage.tell(ended("r"))
    found = explained(stage, tmp_path)
    assert found.attempts[0].concurrent == [ConcurrentPrefill(request="one", tokens=9, certain=certain)]
    has = "computed" if certain else "had"
    assert f"on a, which {has} 1 other prompt of 9 tokens at the same time" in found.summary[0]


def test_the_delay_of_a_later_request_with_the_same_id_is_not_its_own(stage: Stage, tmp_path: Path) -> None:
    """Only what stands behind its own end counts."""
    stage.tell(DELAYED)
    alone(stage)
    assert explained(stage, tmp_path).attempts[0].delay is None


def test_they_stay_in_an_excerpt_and_in_a_redacted_file(stage: Stage, tmp_path: Path) -> None:
    """With the delay, which stands behind the end of the request."""
    alone(stage)
    stage.tell(DELAYED)
    stage.tell(first("later", 3))
    whole = explained(stage, tmp_path)
    with Recording.open(tmp_path / "log", KEY) as recording:
        write_excerpt(recording, "r", tmp_path / "cut", program="contrail test", made_ms=1)
    with ArchiveReader.open(tmp_path / "cut") as archive:
        redact(archive, tmp_path / "redacted", KEY.chain_key, program="contrail test", made_ms=1)
    for name, key in (("cut", KEY), ("redacted", KEY)):
        with Recording.open(tmp_path / name, key) as recording:
            found = explain(recording, "r")
        assert spans(found) == spans(whole)
        assert found.attempts[0].delay == whole.attempts[0].delay
