"""The jobs stream as it grows: what became of every prompt that a decode worker asked others to compute."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from core.codec import decode_message
from core.events.jobs import PrefillCancelled, PrefillCompleted, PrefillPulled, PrefillRequested, PrefillStarted
from core.ids import StreamSeq
from core.subjects import JOBS, asked_wildcard, owner
from streams.jetstream.broker_accounts import ADMIN
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import Record, Tail
from tests.e2e.deployment import Running


@dataclass
class Life:
    """One job."""

    requester: str
    asked: PrefillRequested
    started_by: list[str] = field(default_factory=list)
    completed_by: list[str] = field(default_factory=list)
    ends: int = 0

    @property
    def phase(self) -> str:
        """Where it is: `before` anybody began, `during`, `after` somebody computed it; empty when it is over."""
        if self.ends:
            return ""
        return "after" if self.completed_by else "during" if self.started_by else "before"


@dataclass
class Count:
    """What the log told while one fault was tried."""

    remote: int = 0
    recomputed: Counter[str] = field(default_factory=Counter)
    wait_ms_max: int = 0
    """From asking to the answer or to giving up, by the requester's clock."""


class JobsLog:
    """Follows the stream from its start; `counts` go under `label`."""

    def __init__(self) -> None:
        self.label = ""
        self.jobs: dict[str, Life] = {}
        self.counts: dict[str, Count] = defaultdict(Count)
        self.queued = 0
        """Messages that the queue hands out: what opens a job, and what its requester ends it with."""
        self._asked = ""
        self._heard = asyncio.Event()
        self._log: JetStreamLog | None = None
        self._tail: Tail | None = None

    async def start(self, running: Running) -> None:
        """Everything that was said is known, and what will be."""
        it = running.connection
        self._asked = asked_wildcard(it.namespace).removesuffix(".*")
        self._log = await JetStreamLog.connect(it.nats, it.namespace, it.topology, it.nats_credentials(ADMIN))
        self._tail = await self._log.tail(JOBS, StreamSeq(1), self._on_record)

    async def stop(self) -> None:
        """Nothing is heard of any more."""
        if self._tail is not None:
            await self._tail.stop()
        if self._log is not None:
            await self._log.close()

    def open(self, phase: str, worker: str | None = None) -> list[str]:
        """Jobs in that phase: of this requester, or at this prefill worker."""
        return [
            job
            for job, life in self.jobs.items()
            if life.phase == phase and (worker is None or worker in (life.requester, *life.started_by))
        ]

    @property
    def pulled(self) -> int:
        """Prompts computed elsewhere so far."""
        return sum(count.remote for count in self.counts.values())

    async def until(self, holds: Callable[[], object], what: str, timeout_s: float) -> None:
        """Returns as soon as that is so after an event."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError as error:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}") from error

    def _on_record(self, record: Record) -> None:
        self.queued += record.subject.startswith(self._asked)
        for event in decode_message(record.payload).events:
            self._note(owner(record.subject), event)
        self._heard.set()

    def _note(self, source: str, event: object) -> None:
        count = self.counts[self.label]
        match event:
            case PrefillRequested():
                self.jobs[event.job] = Life(source, event)
            case PrefillStarted(job=job) if job in self.jobs:
                self.jobs[job].started_by.append(source)
            case PrefillCompleted(job=job) if job in self.jobs:
                self.jobs[job].completed_by.append(source)
            case PrefillPulled() | PrefillCancelled():
                self._end(event, count)
            case _:
                pass

    def _end(self, event: PrefillPulled | PrefillCancelled, count: Count) -> None:
        life = self.jobs.get(event.job)
        if life is not None:
            life.ends += 1
        count.wait_ms_max = max(count.wait_ms_max, event.wait_ms)
        if isinstance(event, PrefillPulled):
            count.remote += 1
        else:
            count.recomputed[event.reason] += 1
