"""PrefillQueue: what waits for prefill workers, as the log tells; a pure view of the jobs that were folded."""

from __future__ import annotations

from typing import NamedTuple

from projections.jobs import JobsProjection


class PrefillQueue(NamedTuple):
    """How long the queue is. Of workers whose jobs are half known it is at least this."""

    waiting: int
    """Jobs that nobody has taken yet."""
    waiting_tokens: int
    """Prompt tokens to be computed for these."""
    oldest_ms: int
    """How long the oldest of them has waited; 0 if none does, or if the clock of who asked is ahead."""
    open: int
    """Jobs asked for and not over: those that wait, that are computed, and whose blocks are fetched."""
    taken: int
    """Jobs that somebody computes, as prefill workers say."""
    dead_letters: int
    """Jobs handed out too often and given up, since the fold began."""
    unknown: int
    """Workers of whose jobs some may be missing here."""


def prefill_queue(jobs: JobsProjection, now_ms: int, model: str | None = None) -> PrefillQueue:
    """The queue of one model, or of all; `now_ms` is wall-clock time, compared with that of whoever asked.

    What is taken, dead letters and what is unknown count for all models. O(workers + jobs open).
    """
    waiting = [asked for asked in jobs.waiting().values() if model in {None, asked.model}]
    return PrefillQueue(
        waiting=len(waiting),
        waiting_tokens=sum(asked.tokens for asked in waiting),
        oldest_ms=max(0, *(now_ms - asked.asked_ms for asked in waiting)) if waiting else 0,
        open=sum(model in {None, asked.model} for part in jobs.parts.values() for asked in part.asked.values()),
        taken=jobs.taken,
        dead_letters=jobs.dead_letters,
        unknown=jobs.incomplete,
    )
