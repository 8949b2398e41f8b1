"""Jobs: who asked for what, who computes it, and when a part that missed something is whole again."""

from __future__ import annotations

import pytest

from core.codec import encode_event
from core.events import WorkerLeft, WorkerLost
from core.events.jobs import JobsRestated
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.subjects import JOBS, asked_token
from projections.folds import jobs_fold as jobs_module
from projections.folds.jobs_fold import JobsFold, prefill_queue
from projections.folds.state import State
from tests.projections.facts import worker_id
from tests.projections.job_facts import answerer, asked, cancelled, completed, failed, pulled, requester, started
from tests.projections.speaker import CHAIN_KEY, Speaker, fold

D, P = worker_id(1), worker_id(2)


def part_of(jobs: JobsFold, worker: str = D) -> tuple[set[str], bool]:
    part = jobs.parts[WorkerId(worker)]
    return part.asked.keys() | part.taken.keys(), part.known


def test_a_job_waits_until_somebody_takes_it() -> None:
    """Then it is open until its requester says how it ended; given back, it waits again."""
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    fold(jobs, d.say(asked("a", 1), asked("b", 2)))
    assert (list(jobs.waiting()), jobs.open, jobs.taken) == (["a", "b"], 2, 0)
    fold(jobs, p.say(started("a", 1)))
    assert (list(jobs.waiting()), jobs.open, jobs.taken) == (["b"], 2, 1)
    fold(jobs, p.say(failed("a", 0)))
    assert list(jobs.waiting()) == ["a", "b"]
    fold(jobs, p.say(started("a", 1)), p.say(completed("a", 0)))
    assert (list(jobs.waiting()), jobs.open, jobs.taken) == (["b"], 2, 0)
    fold(jobs, d.say(pulled("a", 1)), d.say(cancelled("b", 0)))
    assert (jobs.waiting(), jobs.open, jobs.answered) == ({}, 0, {})


def test_the_other_order_leaves_nothing_either() -> None:
    """The requester gave up before the prefill worker answered: what is remembered of that is bounded."""
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    fold(jobs, d.say(asked("a", 1)), p.say(started("a", 1)), d.say(cancelled("a", 0)), p.say(completed("a", 0)))
    assert (jobs.open, jobs.taken, jobs.waiting(), list(jobs.answered)) == (0, 0, {}, ["a"])


def test_a_job_of_a_prefill_worker_that_died_waits_again() -> None:
    """The queue hands it out again; one that it had answered does not wait."""
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    fold(jobs, d.say(asked("a", 1), asked("b", 2)), p.say(started("a", 1), completed("a", 0), started("b", 1)))
    assert jobs.waiting() == {}
    fold(jobs, Speaker(JOBS, f"{P}-lost", about=f"answer.{P}").say(WorkerLost(by="x", reason="silent")))
    assert list(jobs.waiting()) == ["b"]


def test_a_dead_letter_is_counted_and_waits_no_more() -> None:
    """The requester hears of it and prefills itself."""
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    fold(jobs, d.say(asked("a", 1)), p.say(failed("a", 0, dead=True)))
    assert (jobs.dead_letters, jobs.waiting(), jobs.open) == (1, {}, 1)


def test_a_gap_that_hid_a_job_is_healed_by_its_end() -> None:
    """Numbers that differ keep the part unknown, also where later jobs come and go; it never guesses."""
    jobs, d = JobsFold(), requester(D)
    fold(jobs, d.say(asked("a", 1)))
    d.say(asked("hidden", 2))
    fold(jobs, d.say(asked("c", 3)))
    assert part_of(jobs) == ({"c"}, False)
    assert (jobs.incomplete, len(jobs.missing)) == (1, 1)
    fold(jobs, d.say(cancelled("a", 2)), d.say(asked("e", 3)), d.say(pulled("c", 2)))
    assert part_of(jobs) == ({"e"}, False)
    fold(jobs, d.say(pulled("hidden", 1)))
    assert part_of(jobs) == ({"e"}, True)
    assert jobs.incomplete == 0


def test_a_gap_that_hid_an_end_is_healed_at_once() -> None:
    """What was counted before a gap is not believed: the number says that only the new one is open."""
    jobs, d = JobsFold(), requester(D)
    fold(jobs, d.say(asked("a", 1)))
    d.say(cancelled("a", 0))
    fold(jobs, d.say(asked("b", 1)))
    assert part_of(jobs) == ({"b"}, True)


def test_an_end_that_cannot_be_read_is_noticed() -> None:
    """A later program's word: with the next number the part begins anew, and is whole when they agree again."""
    jobs, d = JobsFold(), requester(D)
    later = encode_event(cancelled("a", 0)).replace(b"PrefillCancelled", b"PrefillForgotten")
    fold(jobs, d.say(asked("a", 1), asked("b", 2)), d.say_raw(later))
    assert (part_of(jobs), jobs.unknown_events) == (({"a", "b"}, True), 1)
    fold(jobs, d.say(asked("c", 2)))
    assert part_of(jobs) == ({"c"}, False)
    fold(jobs, d.say(pulled("b", 1)))
    assert part_of(jobs) == ({"c"}, True)


def test_a_restatement_says_how_many_are_open() -> None:
    """Nothing is open: whole at once. Some are: whole when the last of them that is not known has ended."""
    jobs, d = JobsFold(), requester(D)
    fold(jobs, d.say(asked("a", 1)))
    d.say(cancelled("a", 0))
    fold(jobs, d.say(JobsRestated(open=0)))
    assert part_of(jobs) == (set(), True)
    fold(jobs, d.say(asked("b", 1)))
    d.say(asked("hidden", 2))
    fold(jobs, d.say(JobsRestated(open=2)))
    assert part_of(jobs) == (set(), False)
    fold(jobs, d.say(pulled("b", 1)), d.say(pulled("hidden", 0)))
    assert part_of(jobs) == (set(), True)


def test_a_repeat_changes_nothing() -> None:
    """The log may hold a message twice."""
    jobs, d = JobsFold(), requester(D)
    first, end = d.say(asked("a", 1)), d.say(pulled("a", 0))
    assert fold(jobs, first, end, first) == [True, True, False]
    assert part_of(jobs) == (set(), True)


@pytest.mark.parametrize("lost", [False, True])
def test_an_end_leaves_a_tombstone(lost: bool) -> None:
    """Of a part that is known or not; what comes after is nobody's."""
    jobs, d, half = JobsFold(), requester(D), requester(P)
    half.say(asked("hidden", 1))
    fold(jobs, d.say(asked("a", 1)), half.say(asked("b", 2)))
    for speaker, worker in ((d, D), (half, P)):
        end = WorkerLost(by="x", reason="silent") if lost else WorkerLeft(reason="done")
        about = Speaker(JOBS, f"{worker}-lost", about=asked_token(worker)) if lost else speaker
        assert fold(jobs, about.say(end), speaker.say(asked("late", 1))) == [True, False]
    assert (jobs.parts, jobs.unknown, jobs.open, jobs.digest) == ({}, set(), 0, 0)
    assert set(jobs.ended) == {D, P}


def test_nobody_ends_another() -> None:
    """WorkerLost counts from its own source only, and a stranger's message not at all."""
    jobs, d = JobsFold(), requester(D)
    fold(jobs, d.say(asked("a", 1), WorkerLost(by="x", reason="nonsense")))
    assert fold(jobs, Speaker(JOBS, P, about=asked_token(D)).say(cancelled("a", 0))) == [False]
    assert part_of(jobs) == ({"a"}, True)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never ends its jobs, and answers to jobs of nobody; both are known to be cut off, or harmless."""
    monkeypatch.setattr(jobs_module, "OPEN_MAX", 4)
    monkeypatch.setattr(jobs_module, "ANSWERED_KEPT", 4)
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    for number in range(10):
        fold(jobs, d.say(asked(f"a{number}", number + 1)), p.say(completed(f"x{number}", 0)))
        assert len(jobs.parts[WorkerId(D)].asked) <= 4
        assert len(jobs.answered) <= 4
    assert jobs.unknown == {D}


def test_which_side_a_worker_speaks_on_is_known() -> None:
    """Whoever writes its end must know its subject; a word of this program's suffices."""
    jobs = JobsFold()
    fold(jobs, requester(D).say(cancelled("a", 0)), answerer(P).say(failed("a", 0)))
    assert [jobs.parts[WorkerId(worker)].answers for worker in (D, P)] == [False, True]


def test_the_queue_is_seen_by_model_and_age() -> None:
    """What waits, how many tokens, how old; nothing is older than now."""
    jobs, d, p = JobsFold(), requester(D), answerer(P)
    fold(jobs, d.say(asked("a", 1, tokens=500, cached=100), asked("b", 2, model="big", tokens=900), asked("c", 3)))
    fold(jobs, p.say(started("c", 1)))
    whole, big, none = (prefill_queue(jobs, 7000, model) for model in (None, "big", "other"))
    assert (whole.waiting, whole.waiting_tokens, whole.oldest_ms, whole.open, whole.taken) == (2, 1300, 7000, 3, 1)
    assert (big.waiting, big.waiting_tokens, big.open) == (1, 900, 1)
    assert (none.waiting, none.waiting_tokens, none.oldest_ms, none.open) == (0, 0, 0, 0)
    assert prefill_queue(jobs, -5).oldest_ms == 0


def test_a_stream_made_anew_is_folded_anew() -> None:
    """A state forgets the jobs of the history before."""
    state, stream = State(CHAIN_KEY), StreamName("jobs")
    assert state.open(stream, Epoch(1)) == 0
    said = requester(D).say(asked("a", 1))
    state.apply(stream, StreamSeq(1), said.subject, said.payload)
    before = state.digest_of(stream)
    assert (state.jobs.open, state.projection(stream)) == (1, state.jobs)
    state.reset(stream, Epoch(2))
    assert (state.jobs.open, state.digest_of(stream), state.cursor[stream]) == (0, 0, (2, 0))
    state.apply(stream, StreamSeq(1), said.subject, said.payload)
    assert state.digest_of(stream) == before
