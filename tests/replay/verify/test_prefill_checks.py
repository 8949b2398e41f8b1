"""`verify` on disaggregated deployments: verdicts on where prompts are computed, and the ends of jobs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from api.cli.renderer import render
from api.cli.replay.text.verify_text import verified_json, verified_text
from core.codec import Message
from core.events import ReplicaJoined, RequestPrefilled, RequestRouted, WorkerLeft
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.events.routing import DECIDE_VERSION, PROGRAM_VERSION, PROGRESS_VERSION
from core.ids import StreamName
from core.subjects import JOBS, ROUTING
from projections.policy.prefill_choice import PrefillInputs, prefill_reason
from projections.policy.rules import RULES
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from replay.verify.prefill_checks import PREFILL_TERMS
from replay.verify.verify import VerifyResult, verify
from streams.log import Record
from tests.actors.disagg.disagg import decode, disagg, prefill
from tests.actors.disagg.faults import (
    Fault,
    Site,
    decode_killed_while_waiting,
    delivered_twice,
    lease_over,
    log_away,
)
from tests.actors.disagg.load import Load
from tests.actors.world import KEY, NAMESPACE
from tests.fixtures.eventually import eventually
from tests.projections.job_facts import asked, cancelled
from tests.replay.disagg_run import run_of
from tests.replay.recorded import recorded
from tests.replay.staged import A, B, Stage
from tests.replay.tampered import event_changed, tampered


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recording]:
    with await run_of(tmp_path_factory.mktemp("disagg") / "log") as recording:
        yield recording


def test_every_verdict_and_every_job_is_accounted_for(run: Recording) -> None:
    """Of an honest log: what was asked, how it ended, and nothing that differs; said in text and JSON."""
    found = verify(run)
    assert found.holds
    seen = found.prefills
    assert (seen.total, seen.verified, seen.different, seen.not_judged, seen.remote) == (6, 6, 0, {}, 5)
    jobs = seen.jobs
    assert (jobs.asked, jobs.pulled, jobs.cancelled, jobs.requester_ended, jobs.open) == (6, 4, {"deadline": 1}, 1, 0)
    assert (jobs.different, jobs.not_judged, jobs.untold) == (0, 0, 0)
    page = render(verified_text(found, run.names))
    assert "All 7 decisions follow from the log." in page
    assert ["prefills", "6", "0", "0"] in [line.split() for line in page.splitlines()]
    assert "  jobs        6: 4 pulled, 1 deadline, 1 ended with their worker" in page
    told = verified_json(found, run.names)["prefills"]
    assert (told["total"], told["different"], told["differences"]) == (6, 0, [])
    assert told["jobs"]["cancelled"] == {"deadline": 1}


def test_ranges_add_up_and_digests_are_of_prefills_too(run: Recording, tmp_path: Path) -> None:
    """A verdict is in one range."""
    whole = verify(run)
    middle = next(
        record.seq for record, m in run.messages(ROUTING) if any(isinstance(e, RequestPrefilled) for e in m.events)
    )
    parts = [verify(run, end=middle + 1), verify(run, start=middle + 1)]
    assert [part.prefills.total for part in parts] == [1, 5]
    assert verify(run).digest == whole.digest
    lie = changed(run, tmp_path / "it", ROUTING, RequestPrefilled, lambda it: _report(it, queued=it.prefill.queued + 1))
    assert found_in(lie).digest == whole.digest, "another number of jobs gives the same verdict"


def test_a_verdict_in_another_version_of_its_event_is_judged_alike(run: Recording, tmp_path: Path) -> None:
    other = changed(
        run, tmp_path / "it", ROUTING, RequestPrefilled, lambda it: structs.replace(it, v=3 - it.v), _was_pulled
    )
    with Recording.open(other, KEY) as recording:
        events = [event for _, message in recording.messages(ROUTING) for event in message.events]
    assert {event.v for event in events if isinstance(event, RequestPrefilled)} == {1, PROGRESS_VERSION}
    found = found_in(other)
    assert (found.holds, found.digest) == (True, verify(run).digest)
    assert (found.prefills.total, found.prefills.verified) == (6, 6)


@pytest.mark.parametrize(
    ("fields", "term", "recorded_", "recomputed"),
    [
        ({"reason": "busy"}, "reason", "busy", "long"),
        ({"uncached_tokens": 3}, "reason", "long", "short"),
        ({"workers": 0}, "reason", "long", "no_prefill_worker"),
        ({"queue_max": 0}, "reason", "long", "queue_full"),
        ({"remote": False}, "remote", False, True),
        ({"outcome": "deadline"}, "end", "deadline", "pulled"),
        ({"wait_ms": 99_999}, "wait_ms", 99_999, None),
        ({"worker": "0" * 16}, "worker", "0" * 16, None),
        ({"job": "", "outcome": ""}, "job", "", "one"),
    ],
)
def test_a_verdict_that_was_rewritten_with_the_key_is_named(
    run: Recording, tmp_path: Path, fields: dict[str, Any], term: str, recorded_: object, recomputed: object
) -> None:
    """The first one that was pulled says something else: chains hold, and it is found, with the term."""
    lie = changed(run, tmp_path / "it", ROUTING, RequestPrefilled, lambda it: _report(it, **fields), _was_pulled)
    found = found_in(lie)
    assert not found.holds
    assert (found.prefills.different, found.prefills.verified, found.different) == (1, 5, 0)
    (difference,) = found.prefills.differences
    assert (difference.term, difference.recorded) == (term, recorded_)
    assert recomputed is None or difference.recomputed == recomputed
    assert (difference.request, difference.stream) == ("pulled", ROUTING)
    page = render(verified_text(found, run.names))
    assert "1 of 6 verdicts on where to compute a prompt does not follow" in page
    assert PREFILL_TERMS[term] in page
    assert verified_json(found, run.names)["prefills"]["differences"][0]["term"] == term


def _report(it: RequestPrefilled, **fields: Any) -> RequestPrefilled:
    assert it.prefill is not None
    return structs.replace(it, prefill=structs.replace(it.prefill, **fields))


def _was_pulled(it: Any) -> bool:
    return it.prefill is not None and it.prefill.outcome == "pulled"


@pytest.mark.parametrize(
    ("kind", "change", "terms"),
    [
        (PrefillPulled, lambda it: structs.replace(it, tokens=it.tokens + 1), {"tokens"}),
        (PrefillPulled, lambda it: structs.replace(it, open=it.open + 1), {"open"}),
        (PrefillPulled, lambda it: structs.replace(it, job="0" * 16), {"unasked"}),
        (PrefillCancelled, lambda it: structs.replace(it, reason="mismatch"), {"end"}),
        (PrefillRequested, lambda it: structs.replace(it, open=it.open + 1), set()),
    ],
)
def test_a_job_that_was_rewritten_is_named(
    run: Recording, tmp_path: Path, kind: type, change: Callable[[Any], Any], terms: set[str]
) -> None:
    """What a worker says first of how many jobs it has may be more than the log tells: it may have had another id."""
    found = found_in(changed(run, tmp_path / "it", JOBS, kind, change))
    assert {each.term for each in found.prefills.differences} == terms
    assert found.holds == (not terms)


def test_an_end_too_many(run: Recording, tmp_path: Path) -> None:
    """A job ends once; the other one has no end then, which its worker's own count does not fit."""
    pulled = [
        (record, event) for record, m in run.messages(JOBS) for event in m.events if isinstance(event, PrefillPulled)
    ]
    first, last = pulled[0], pulled[-1]
    assert first[0].subject != last[0].subject
    last_one = last[1].job
    rename = partial(structs.replace, job=first[1].job)
    twice = changed(run, tmp_path / "it", JOBS, PrefillPulled, rename, lambda it: it.job == last_one)
    assert "ends" in {each.term for each in found_in(twice).prefills.differences}


@pytest.mark.parametrize("over", [False, True])
def test_a_job_that_another_ended(tmp_path: Path, over: bool) -> None:
    """That is odd, unless the worker that asked is over: then it may be the same one under a new id."""
    stage = Stage()
    stage.frames[JOBS] = []
    stage.say(JOBS, A, asked("0a" * 8, 1))
    stage.say(JOBS, B, cancelled("0a" * 8, 0))
    if over:
        stage.say(JOBS, A, WorkerLeft(reason="draining"))
    with stage.recording(tmp_path / "log") as recording:
        seen = verify(recording).prefills
    assert [each.term for each in seen.differences] == ([] if over else ["owner"])
    assert (seen.jobs.asked, seen.jobs.different, seen.jobs.open) == (1, 0 if over else 1, 0)


def test_rules_that_changed_are_a_difference(run: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in them shows as in decisions; what was short is short still."""

    def all_short(inputs: PrefillInputs) -> str:
        return prefill_reason(inputs._replace(min_tokens=1_000_000))

    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(prefill_reason=all_short))
    found = verify(run)
    assert (found.prefills.different, found.prefills.verified) == (5, 1)
    assert {each.term for each in found.prefills.differences} == {"reason"}


def test_a_verdict_is_made_again_by_its_own_rules(
    run: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next version needs twice the tokens: what it had computed here follows from it, and not from this one."""

    def of_two(inputs: PrefillInputs) -> str:
        return prefill_reason(inputs._replace(min_tokens=1_000_000))

    monkeypatch.setitem(RULES, DECIDE_VERSION + 1, RULES[DECIDE_VERSION]._replace(prefill_reason=of_two))
    lie = {"rules": DECIDE_VERSION + 1, "reason": "short", "remote": False, "job": "", "worker": "", "outcome": ""}
    other = changed(run, tmp_path / "it", ROUTING, RequestPrefilled, lambda it: _report(it, **lie), _was_pulled)
    assert (found_in(other).prefills.verified, found_in(other).prefills.different) == (6, 0)
    monkeypatch.setitem(RULES, DECIDE_VERSION + 1, RULES[DECIDE_VERSION])
    assert (found_in(other).prefills.verified, found_in(other).prefills.different) == (5, 1)


@pytest.mark.parametrize(
    ("lie", "program", "term"),
    [
        ({"reason": "of_the_future"}, "9.0.0", "reason"),
        ({"rules": DECIDE_VERSION + 1}, PROGRAM_VERSION, "rules"),
        ({"rules": 0}, "9.0.0", "rules"),
        ({"rules": DECIDE_VERSION + 1}, "9.0.0", ""),
    ],
)
def test_a_verdict_of_rules_that_are_not_here(
    run: Recording, tmp_path: Path, lie: dict[str, Any], program: str, term: str
) -> None:
    """It is excused only by a newer program in the log; an unknown word under known rules is a difference."""
    changed(run, tmp_path / "one", ROUTING, ReplicaJoined, lambda it: structs.replace(it, version=program))
    with Recording.open(tmp_path / "one", KEY) as one:
        found = found_in(changed(one, tmp_path / "it", ROUTING, RequestPrefilled, lambda it: _report(it, **lie)))
    assert [each.term for each in found.prefills.differences] == [term] * bool(term)
    assert (found.prefills.verified, found.prefills.not_judged) == (5, {} if term else {"version": 1})
    assert ("by rules of a newer program" in render(verified_text(found, {}))) == (not term)  # type: ignore[arg-type]


def test_a_preferred_worker_that_was_rewritten_is_named(run: Recording, tmp_path: Path) -> None:
    """It is a part of the decision, though where nobody is preferred the digest does not cover it."""
    lie = changed(run, tmp_path / "it", ROUTING, RequestRouted, lambda it: structs.replace(it, prefer="0" * 16))
    found = found_in(lie)
    assert (found.different, found.differences[0].term) == (1, "prefer")


@pytest.mark.parametrize(
    "fault",
    [lease_over, decode_killed_while_waiting, log_away, delivered_twice],
    ids=lambda fault: fault.__name__,
)
async def test_faults_under_load_leave_nothing_that_differs(fault: Fault, tmp_path: Path) -> None:
    """Whatever happens, what the log tells of it fits."""
    async with disagg() as it:
        for number in range(2):
            await decode(it, f"decode-{number}")
            await prefill(it, f"prefill-{number}")
        router = await it.router()
        async with Load(router, 1) as load:
            site = Site(it, load, random.Random(1))
            await site.linked()
            await site.pulled_more()
            await fault(site)
            await site.linked()
            await site.pulled_more()
            await load.more(8)
        await eventually(lambda: router.publisher.outbox.idle, "the log has the verdicts")
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "log")
    with recording:
        found = verify(recording)
    assert found.holds, [found.prefills.differences, found.differences, found.proof.breaks]
    jobs = found.prefills.jobs
    assert found.prefills.verified == found.prefills.total > 10
    assert jobs.asked == jobs.pulled + sum(jobs.cancelled.values()) + jobs.requester_ended + jobs.open
    assert jobs.pulled > 2


async def test_what_retention_took_is_not_judged(tmp_path: Path) -> None:
    """Verdicts are, for they need nothing else."""
    with await run_of(tmp_path / "log", expired=True) as recording:
        found = verify(recording)
    assert (found.prefills.verified, found.prefills.different) == (6, 0)
    jobs = found.prefills.jobs
    assert (jobs.asked, jobs.different, jobs.untold) == (0, 0, 5 - jobs.pulled)


def test_a_redacted_log_tells_the_same(run: Recording, tmp_path: Path) -> None:
    """Without names: verdicts and jobs come out as before."""
    redact(run.archive, tmp_path / "it", KEY.chain_key, program="test", made_ms=1)
    with Recording.open(tmp_path / "it") as hidden:
        found, before = verify(hidden).prefills, verify(run).prefills
        ids = [tried.request for tried in hidden.requests.between()]
        jobs = [attempt.job for request in ids for attempt in explain(hidden, request).attempts]
    assert (found, len(ids)) == (before, 7)
    assert sorted(job.outcome for job in jobs if job) == sorted(_outcomes(run))


def _outcomes(run: Recording) -> Iterator[str]:
    for tried in run.requests.between():
        for attempt in explain(run, tried.request).attempts:
            if attempt.job is not None:
                yield attempt.job.outcome


def found_in(path: Path) -> VerifyResult:
    with Recording.open(path, KEY) as recording:
        return verify(recording)


def changed(
    run: Recording,
    to: Path,
    stream: StreamName,
    kind: type,
    change: Callable[[Any], Any],
    which: Callable[[Any], bool] = lambda _: True,
) -> Path:
    """The log as somebody with the key rewrote it: the first such event is another, and all chains follow."""
    seq = next(
        record.seq for record, m in run.messages(stream) if any(isinstance(e, kind) and which(e) for e in m.events)
    )
    left = [True]

    def altered(message: Message) -> Message:
        said = []
        for event in message.events:
            if isinstance(event, kind) and which(event) and left[0]:
                left[0] = False
                said.append(change(event))
            else:
                said.append(event)
        left[0] = True  # every message is made twice
        return structs.replace(message, events=tuple(said))

    def each(record: Record) -> Record:
        return event_changed(record, altered) if (record.stream, record.seq) == (stream, seq) else record

    return tampered(run.archive.path, to, each, rechain_key=KEY.chain_key)
