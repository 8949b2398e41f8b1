"""Events of the jobs stream for tests, and workers that count their own jobs as the real ones do."""

from __future__ import annotations

from collections.abc import Sequence

from core.events import Event, WorkerLeft
from core.events.jobs import (
    JobEvent,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.kv_transfer import KvBlocks
from core.subjects import JOBS, answered_token, asked_token
from tests.projections.speaker import Said, Speaker

Word = tuple[str, int]
"""What a worker does next, and with which of its jobs."""


def asked(job: str, open_: int = 0, model: str = "tiny", tokens: int = 1000, cached: int = 0) -> PrefillRequested:
    return PrefillRequested(
        job=job, request="r", attempt=0, model=model, block_size=16, prompt_tokens=tokens, cached_tokens=cached,
        digest="d" * 32, wait_ms=10_000, open=open_,
    )  # fmt: skip


def pulled(job: str, open_: int = 0) -> PrefillPulled:
    return PrefillPulled(
        job=job, worker="p", blocks=1, bytes=1, tokens=16, transport="tcp", wait_ms=1, pull_ms=1, open=open_
    )


def cancelled(job: str, open_: int = 0) -> PrefillCancelled:
    return PrefillCancelled(job=job, reason="deadline", open=open_)


def started(job: str, open_: int = 0, requester: str = "d") -> PrefillStarted:
    return PrefillStarted(job=job, requester=requester, attempt=0, delivery=1, open=open_)


def completed(job: str, open_: int = 0) -> PrefillCompleted:
    return PrefillCompleted(
        job=job, requester="d", attempt=0, model="tiny", block_size=16, layout="l", digest="d" * 32,
        blocks=KvBlocks(request="own", ids=((1,),), tokens=16), keep_ms=1000, compute_ms=1, cached_tokens=0, open=open_,
    )  # fmt: skip


def failed(job: str, open_: int = 0, *, dead: bool = False) -> PrefillFailed:
    return PrefillFailed(job=job, requester="d", attempt=0, reason="the engine stopped", dead=dead, open=open_)


def requester(worker: str) -> Speaker:
    """A decode worker in the jobs stream."""
    return Speaker(JOBS, worker, about=asked_token(worker))


def answerer(worker: str) -> Speaker:
    """A prefill worker there."""
    return Speaker(JOBS, worker, about=answered_token(worker))


class Jobber:
    """A worker with jobs that it counts: what it says of how many are open is true."""

    def __init__(self, worker: str, *, answers: bool) -> None:
        self.speaker = answerer(worker) if answers else requester(worker)
        self.open: set[str] = set()
        self._worker = worker
        self._answers = answers

    def tell(self, words: Sequence[Word]) -> list[Event]:
        """The events of these words, as far as they make sense now."""
        found: list[Event] = []
        for what, number in words:
            event = self._event(what, f"{self._worker}:{number}")
            if event is not None:
                found.append(event)
            if what == "leave":
                break
        return found

    def say(self, *words: Word) -> Said:
        """One message of them."""
        return self.speaker.say(*self.tell(words))

    def _event(self, what: str, job: str) -> Event | None:
        if what == "leave":
            return WorkerLeft(reason="done")
        if (what == "open") == (job in self.open):
            return None
        self.open ^= {job}
        return self._of(what, job, len(self.open))

    def _of(self, what: str, job: str, count: int) -> JobEvent:
        if what == "open":
            return started(job, count) if self._answers else asked(job, count)
        if what == "end":
            return completed(job, count) if self._answers else pulled(job, count)
        return failed(job, count) if self._answers else cancelled(job, count)
