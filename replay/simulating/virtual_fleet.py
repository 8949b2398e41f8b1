"""VirtualFleet: the workers of a simulation, each in its place; those that end come back as others after a while."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import xxhash

from core.ids import WorkerId
from replay.simulating.agenda import Agenda
from replay.simulating.failures import Failures
from replay.simulating.options import Options
from replay.simulating.virtual_log import VirtualLog
from replay.simulating.virtual_worker import Heard, VirtualWorker

LEASE_US = 10_000_000
"""How long after its end a worker is said to be lost."""
RESTART_US = 30_000_000
"""How long after its end another one takes its place, with an empty cache."""


class VirtualFleet:
    """See the module's text."""

    def __init__(
        self,
        options: Options,
        agenda: Agenda,
        log: VirtualLog,
        *,
        heard: Heard,
        broke: Callable[[VirtualWorker], None],
        speaker: Callable[[], str],
    ) -> None:
        """`broke` hears of a worker that ended, at once; `speaker` is the replica that says so in the log later."""
        self.gone: set[WorkerId] = set()
        """Those that ended: no replica has a connection to them."""
        self._options = options
        self._agenda = agenda
        self._log = log
        self._heard = heard
        self._broke = broke
        self._speaker = speaker
        self._lives = 0
        self._by_id: dict[WorkerId, VirtualWorker] = {}
        self._places = [self._new(place) for place in range(options.workers)]
        if options.failures_per_hour:
            self._failures = Failures(options.failures_per_hour, options.workers, options.seed)
            self._fail_next()

    def __repr__(self) -> str:
        return f"<VirtualFleet of {len(self._places)}, {len(self.gone)} ended so far>"

    def worker(self, id: WorkerId) -> VirtualWorker:
        """The worker that has this id, or had it."""
        return self._by_id[id]

    def _new(self, place: int) -> VirtualWorker:
        self._lives += 1
        name = WorkerId(xxhash.xxh3_64_hexdigest(f"worker/{self._lives}".encode(), self._options.seed))
        worker = VirtualWorker(name, place, self._options.engine, self._agenda, self._log, self._heard)
        self._by_id[name] = worker
        worker.join()
        return worker

    def _fail_next(self) -> None:
        at_us, place = self._failures.next()
        self._agenda.put(at_us, partial(self._fail, place))

    def _fail(self, place: int) -> None:
        """The worker in that place ends, unless the one before it is not replaced yet."""
        self._fail_next()
        worker = self._places[place]
        if not worker.alive:
            return
        worker.die()
        self.gone.add(worker.id)
        self._agenda.put(self._agenda.now_us + LEASE_US, lambda: worker.lose(self._speaker()))
        self._agenda.put(self._agenda.now_us + RESTART_US, partial(self._replace, place))
        self._broke(worker)

    def _replace(self, place: int) -> None:
        self._places[place] = self._new(place)
