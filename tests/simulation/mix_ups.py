"""A prefill worker that now and then answers with what it made for somebody else."""

from __future__ import annotations

import random

import msgspec

from actors.disagg.prefill_execution import PrefillWorkerState
from actors.transport.frames import FromPrefill, JobCompleted
from core.events import Event
from core.events.jobs import PrefillCompleted
from core.ids import WorkerId


class MixUps:
    """Job, attempt and times of an answer are right; prompt and blocks are those of the answer before it."""

    def __init__(self, state: PrefillWorkerState, random_: random.Random, share: float) -> None:
        self._random = random_
        self._share = share
        self._before: PrefillCompleted | None = None
        self._told: dict[str, PrefillCompleted] = {}
        self._say, self._send = state.say, state.requesters.send
        state.say = self.say
        state.requesters.send = self.send  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"<MixUps in {self._share:.0%} of the answers>"

    def send(self, worker: WorkerId, frame: FromPrefill) -> None:
        """Over TCP."""
        self._send(worker, JobCompleted(event=self._mixed(frame.event)) if isinstance(frame, JobCompleted) else frame)

    def say(self, event: Event) -> None:
        """To the log: the same as over TCP."""
        self._say(self._mixed(event) if isinstance(event, PrefillCompleted) else event)

    def _mixed(self, event: PrefillCompleted) -> PrefillCompleted:
        known = self._told.get(event.job)
        if known is not None and known.attempt == event.attempt:
            return known
        told, before = event, self._before
        if before is not None and self._random.random() < self._share:
            told = msgspec.structs.replace(event, digest=before.digest, blocks=before.blocks)
        self._before = event
        self._told[event.job] = told
        return told
