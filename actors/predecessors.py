"""Predecessors: what the journals of dead processes still hold goes to the log, under the names of the dead.

Whoever finds a journal without a lock has found a dead process's; the lock is then its own, so that of several
successors one tells it. The journal moves with each acknowledgement: whoever kills the successor leaves the rest to
the next one. First comes the message in flight, as it is; then what was not sealed, as further messages of the same
source; then its end. Behind an end that another wrote all this stands too: folds ignore it, the history has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from actors.telling import Telling
from core.clock import Clock
from core.errors import Corrupt, Refused, Unavailable
from core.keys import DeploymentKey
from core.subjects import ROUTING
from streams.log import EventLog
from streams.outbox.backlog import OutboxLimits
from streams.outbox.journal import Journal, identity
from streams.outbox.journal_file import DRAFT_SUFFIX, SUFFIX

LOOK_EVERY_S = 3.0
"""Between looks for journals that nobody holds."""
DRAFT_AGE_S = 60.0
"""A draft that is older than this was left by a process that was killed while it made it."""
BROKEN_SUFFIX = ".broken"
"""What is added to the name of a journal that cannot be read: it is kept for a person to look at."""
LIMITS = OutboxLimits()

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PredecessorCounts:
    """What became of journals since this process started."""

    told: int = 0
    """Journals told to their end."""
    events: int = 0
    """Events told."""
    refused: int = 0
    """Journals that cannot be told: broken, or another deployment's."""


class Predecessors:
    """Looks after the journals in one folder."""

    def __init__(self, folder: Path, namespace: str, log: EventLog, clock: Clock, key: DeploymentKey) -> None:
        self.counts = PredecessorCounts()
        self._folder = folder
        self._namespace = namespace
        self._log = log
        self._clock = clock
        self._key = key
        self._left_alone: set[Path] = set()
        """Journals that are not ours to tell, or that the log refuses: said once."""
        self._waiting: set[Path] = set()
        """Journals that wait for the log: said once."""

    def __repr__(self) -> str:
        return f"<Predecessors in {self._folder}, {self.counts.told} told>"

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            try:
                await self.look()
            except Exception:  # whatever it was, what others left must go on being found
                _logger.exception("a look at the journals failed by a defect, trying again")
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Every journal that nobody holds is told and gone, or is left for the next look."""
        self._sweep()
        for path in sorted(self._folder.glob("*" + SUFFIX)):
            if path not in self._left_alone:
                await self._look_at(path)

    async def _look_at(self, path: Path) -> None:
        try:
            await self._take_over(path)
        except Unavailable as error:
            if path not in self._waiting:
                self._waiting.add(path)
                _logger.warning("%s waits until it can be told: %s", path.name, error)
        except Refused as error:
            self._leave_alone(path, str(error))
        except Corrupt as error:
            self._set_aside(path, str(error))

    async def _take_over(self, path: Path) -> None:
        ours = identity(self._namespace, ROUTING, "", self._key.chain_key)
        journal = Journal.open_left(path, ours, LIMITS)
        if journal is None:
            return
        told = False
        try:
            for _ in journal.scan():
                await asyncio.sleep(0)
            events = await Telling(journal, self._namespace, self._log, self._clock, self._key.chain_key).tell()
            told = True
        finally:
            journal.close(delete=told)
        self._waiting.discard(path)
        self.counts.told += 1
        self.counts.events += events
        _logger.warning("told %d events of a dead process's journal", events, extra={"replica": journal.source})

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(path.name + BROKEN_SUFFIX)
        path.rename(aside)
        self.counts.refused += 1
        _logger.error("%s; what it holds is not told, it is kept as %s", why, aside)

    def _leave_alone(self, path: Path, why: str) -> None:
        self._left_alone.add(path)
        self.counts.refused += 1
        _logger.warning("journal left alone: %s", why)

    def _sweep(self) -> None:
        """Files that never became journals are gone."""
        for draft in self._folder.glob("*" + DRAFT_SUFFIX):
            try:
                if time.time() - draft.stat().st_mtime > DRAFT_AGE_S:
                    draft.unlink()
            except FileNotFoundError:
                continue  # its process was only slow, or another was quicker
