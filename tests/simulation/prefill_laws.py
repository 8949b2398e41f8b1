"""Laws of prompts that one worker computes and another decodes; see `tests.simulation.invariants`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from actors.disagg.remote_prefill import SLOT_CHECK_S
from core.codec import decode_message
from core.events import Event, RequestPrefilled, UnknownEvent
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.ids import StreamName, WorkerId
from core.subjects import JOBS, ROUTING, owner
from projections.policy.decide import decide_prefill
from projections.policy.prefill_choice import PREFILL_OUTCOMES, inputs_of
from tests.simulation.waits import most_job_s
from tests.simulation.witness import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

CLOCK_S = 0.01
"""Timers go off a little late, and clocks count whole milliseconds."""


class Ended(NamedTuple):
    """How a job ended, and who said so."""

    by: WorkerId
    event: PrefillPulled | PrefillCancelled


class Jobs(NamedTuple):
    """What decode workers said in the jobs stream."""

    asked: dict[str, tuple[WorkerId, PrefillRequested]]
    ended: dict[str, list[Ended]]


def told(world: World) -> Jobs:
    """All that the log has of it now."""
    jobs = Jobs({}, {})
    for who, event in _events(world, JOBS):
        if isinstance(event, PrefillRequested):
            jobs.asked[event.job] = who, event
        elif isinstance(event, PrefillPulled | PrefillCancelled):
            jobs.ended.setdefault(event.job, []).append(Ended(who, event))
    return jobs


def caches_hold_what_their_names_say(world: World) -> None:
    """No engine's cache has wrong contents under a right name."""
    for part in world.movers:
        if wrong := part.moving.wrong_blocks():
            raise Broken(f"poisoned: {wrong} blocks in the cache of {part.name} hold what another prompt made")


def every_job_has_one_end(world: World) -> None:
    """Of everybody who lives and was never taken for lost, each job has exactly one end; nobody's has two."""
    if not world.witness.history_kept:
        return
    jobs, steady = told(world), {part.id for part in world.movers if part.id == part.first_id}
    for job, (who, _) in jobs.asked.items():
        ends = len(jobs.ended.get(job, ()))
        if ends > 1 or (not ends and who in steady):
            raise Broken(f"job {job} of {who} has {ends} ends")
    for job, ends_ in jobs.ended.items():
        if job not in jobs.asked and ends_[0].by in steady:
            raise Broken(f"job {job} of {ends_[0].by} ends, and nobody asked for it")


def nothing_waits_for_ever(world: World) -> None:
    """Every job ends within its time: the deadline if nobody answers, else what a pull and its check may take."""
    jobs = told(world)
    for job, ends in jobs.ended.items():
        if job not in jobs.asked or ends[0].by in world.witness.paused:
            continue
        who, asked = jobs.asked[job]
        waited_s, most_s = _waited_s(ends[0].event), _most_s(world, asked, ends[0].event)
        if waited_s > most_s:
            raise Broken(f"job {job} of {who} took {waited_s:.3f} s, at most {most_s:.3f} s are allowed: {ends[0]}")
    if world.witness.late:
        raise Broken(world.witness.late[0])


def the_queue_is_empty(world: World) -> None:
    """At rest no job is open or under way in any fold, and nobody who is over has a part in it.

    Who is over, and has nothing left in the log, is ended by nobody.
    """
    alive = {worker.id for worker in world.workers.values()}
    told_of = {owner(record.subject) for record in world.stream(JOBS).from_seq(1)}
    for name, jobs in world.job_folds():
        dead = jobs.parts.keys() - alive
        if dead and (world.witness.history_kept or dead & told_of):
            raise Broken(f"{name} still has jobs of {sorted(dead)}, who are over")
        open_ = [job for part in jobs.parts.values() for job in (*part.asked, *part.taken)]
        if open_:
            raise Broken(f"{name} has jobs open at rest: {open_}")


def folds_of_jobs_agree(world: World) -> None:
    """Decode workers follow the jobs stream by themselves, and come to what a fold from zero gives."""
    if not world.witness.history_kept:
        return
    found = {name: jobs.digest for name, jobs in world.job_folds()}
    if len(set(found.values())) > 1:
        raise Broken(f"folds of the jobs stream differ: {found}")


def verdicts_replay(world: World) -> None:
    """Every recorded verdict on where to compute a prompt comes out of its recorded inputs again."""
    for _, event in _events(world, ROUTING):
        if not isinstance(event, RequestPrefilled) or event.prefill is None:
            continue
        found, again = event.prefill, decide_prefill(inputs_of(event.prefill), event.prefill.rules)
        if (found.remote, found.reason) != (again.remote, again.reason):
            raise Broken(f"the verdict on {event.request} was {found}, replays {again}")
        if found.outcome not in PREFILL_OUTCOMES or bool(found.outcome) != found.remote:
            raise Broken(f"{event.request} has no outcome that fits its verdict: {found}")


def count_jobs(world: World) -> None:
    """The witness saw how each job ended that the log tells of."""
    jobs = told(world)
    for job in jobs.asked:
        for end in jobs.ended.get(job, ()):
            how = end.event.reason if isinstance(end.event, PrefillCancelled) else "pulled"
            world.witness.saw(f"job {how}", job)
        if job not in jobs.ended:
            world.witness.saw("job open", job)


def _waited_s(event: PrefillPulled | PrefillCancelled) -> float:
    return (event.wait_ms + (event.pull_ms if isinstance(event, PrefillPulled) else 0)) / 1000


def _most_s(world: World, asked: PrefillRequested, event: PrefillPulled | PrefillCancelled) -> float:
    if isinstance(event, PrefillCancelled) and event.reason in {"deadline", "log_away", "mismatch"}:
        return asked.wait_ms / 1000 + CLOCK_S
    return most_job_s(world.options, asked.wait_ms) + SLOT_CHECK_S + CLOCK_S


def _events(world: World, stream: StreamName) -> Iterator[tuple[WorkerId, Event | UnknownEvent]]:
    """What was said there, and by whom; not what the world put there."""
    for record in world.stream(stream).from_seq(1):
        if record.payload not in world.witness.made:
            for event in decode_message(record.payload).events:
                yield WorkerId(owner(record.subject)), event


PREFILL_LAWS = (
    caches_hold_what_their_names_say,
    every_job_has_one_end,
    nothing_waits_for_ever,
    the_queue_is_empty,
    folds_of_jobs_agree,
    verdicts_replay,
)
