"""A prefill worker that now and then answers with what it made for somebody else."""

from __future__ import annotations

import random

import msgspec

from actors.disagg.prefill_execution import PrefillCommand, SendToRequester
from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_role import PrefillRole
from actors.transport.frames import JobCompleted
from core.events.jobs import PrefillCompleted


class MixUps:
    """Job, attempt and times of an answer are right; prompt and blocks are those of the answer before it."""

    def __init__(self, role: PrefillRole, random_: random.Random, share: float) -> None:
        self._random = random_
        self._share = share
        self._before: PrefillCompleted | None = None
        self._told: dict[str, PrefillCompleted] = {}
        self._execute = role._shell._execute
        role._shell._execute = self.execute

    def __repr__(self) -> str:
        return f"<MixUps in {self._share:.0%} of the answers>"

    def execute(self, command: PrefillCommand) -> None:
        """Over TCP and in the log the same is said."""
        match command:
            case SendToRequester(worker, JobCompleted(event=event)):
                self._execute(SendToRequester(worker, JobCompleted(event=self._mixed(event))))
            case PublishJob(PrefillCompleted() as event):
                self._execute(PublishJob(self._mixed(event)))
            case _:
                self._execute(command)

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
