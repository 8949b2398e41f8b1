"""Workers of a disaggregated simulation without routers, for tests: who ends when is the test's to say."""

from __future__ import annotations

from typing import Any

from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.events import Event, UnknownEvent
from core.events.kv import DECODE, PREFILL
from core.generation import GenerateRequest, Hint, Output, PrefillReport, Sampling
from core.ids import RequestId, WorkerId
from core.prompt import hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import JOBS
from replay.simulate.report import PrefillVerdict
from replay.simulate.simulated_decode_role import SimulatedDecodeRole
from replay.simulate.simulated_log import SimulatedLog, SimulatedSource
from replay.simulate.simulated_prefill_role import SimulatedPeers, SimulatedPrefillQueue, SimulatedPrefillRole
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda

SIZE = 32
ENGINE = SimulatedSettings(block_size=SIZE, capacity_blocks=4000, context_max=100_000, max_seqs=16, eos_every=0)
"""50 us a prompt token, 100 us a block that moves, 5 ms a pass of decoding."""
SETTINGS = RoutingSettings(policy="kv", remote_prefill_min_tokens=500)


class Room:
    """Everybody by name: `decode-0`, `prefill-1`."""

    def __init__(self, decode: int = 1, prefill: int = 1, engine: SimulatedSettings = ENGINE) -> None:
        self.agenda = Agenda()
        self.log = SimulatedLog(self.agenda, None, jobs=True)
        self.peers = SimulatedPeers()
        self.queue = SimulatedPrefillQueue(self.agenda)
        self.verdicts: list[PrefillVerdict] = []
        self.reports: dict[str, PrefillReport] = {}
        """With the first tokens."""
        self.first_us: dict[str, int] = {}
        self._reader = self.log.reader(0)
        self._engine = engine
        self.workers = {f"decode-{number}": self._decode(number) for number in range(decode)}
        self.workers |= {f"prefill-{number}": self._prefill(number) for number in range(prefill)}

    def submit(self, name: str, tokens: int, to: str = "decode-0", output_tokens: int = 3) -> None:
        """A request has come that is like no other."""
        blocks = hashes_to_bytes(hash((name, place)) & 0xFFFF_FFFF for place in range(tokens // SIZE))
        request = GenerateRequest(id=RequestId(name), tokens=b"", sampling=Sampling(max_tokens=output_tokens))
        self.workers[to].submit(Submit(request, known=BlockHashPrompt(tokens, blocks)), Hint())

    def until(self, at_us: int) -> None:
        """It is that time."""
        reached: list[bool] = []
        self.agenda.put(at_us, lambda: reached.append(True))
        while not reached:
            self.agenda.advance()

    def said(self, kind: type[Event]) -> list[tuple[str, Any]]:
        """What was said of this kind in the jobs stream since this was asked last, and by whom; all else is gone."""
        names = {worker.id: name for name, worker in self.workers.items()}
        found: list[tuple[str, Event | UnknownEvent]] = []
        for frame in self._reader.until(self.agenda.now_us):
            assert frame.message is not None
            found += [(names[WorkerId(frame.owner)], event) for event in frame.message.events if frame.stream == JOBS]
        return [(name, event) for name, event in found if isinstance(event, kind)]

    def _decode(self, number: int) -> SimulatedWorker:
        worker = self._worker(number, DECODE)
        worker.side = SimulatedDecodeRole(
            worker, self.peers, self.queue, self._chain(worker), self.agenda, SETTINGS,
            jobs=self.log.jobs, on_verdict=self.verdicts.append,
        )  # fmt: skip
        return worker

    def _prefill(self, number: int) -> SimulatedWorker:
        worker = self._worker(100 + number, PREFILL)
        worker.side = SimulatedPrefillRole(worker, self.peers, self.queue, self._chain(worker), self.agenda)
        return worker

    def _worker(self, place: int, role: str) -> SimulatedWorker:
        id_ = WorkerId(f"{place:016x}")
        worker = SimulatedWorker(id_, place, self._engine, self.agenda, self.log, self._hear, role)
        worker.join()
        return worker

    def _chain(self, worker: SimulatedWorker) -> SimulatedSource:
        worker.jobs = SimulatedSource(self.log, JOBS, worker.id)
        return worker.jobs

    def _hear(self, request: RequestId, output: Output, at_us: int) -> None:
        if output.prefill is not None:
            self.reports[request] = output.prefill
            self.first_us[request] = at_us
