"""A RequestScheduler on a bench: its commands are noted, workers are words in a log, time is moved by hand."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import HashColumns
from actors.router.answer_progress import AnswerProgress
from actors.router.request_scheduler import (
    Arrived,
    ClientGone,
    OutputArrived,
    Publish,
    PublishLocal,
    RequestScheduler,
    SchedulerCommand,
    SchedulerEvent,
)
from actors.router.routed_request import RoutedRequest
from core.events import Event, PoolAccess, RequestRouted, WorkerJoined
from core.generation import GenerateRequest, Output
from core.ids import ReplicaId, RequestId, WorkerId
from core.kv_transfer import FetchAddress
from core.settings import RoutingSettings
from replay.simulate.simulated_log import KV, SimulatedLog, SimulatedSource
from replay.simulate.simulated_replica import SimulatedReplica
from replay.simulate.virtual_time import Agenda
from tests.actors.world import request
from tests.projections.facts import worker_id

MODEL = "sim"
BLOCK_SIZE = 16
KEPT_AT_ONCE = RoutingSettings(policy="kv", active_max=1)
"""One slot for each worker, and no request is held."""


class Scheduling:
    """One scheduler with everything that it did."""

    def __init__(self, settings: RoutingSettings = KEPT_AT_ONCE, workers: int = 1, slots: int = 8) -> None:
        self.agenda = Agenda()
        self.gone = set[WorkerId]()
        self.commands: list[SchedulerCommand] = []
        log = self.log = SimulatedLog(self.agenda, None)
        log.begun = True
        self.replica = SimulatedReplica(
            ReplicaId("a" * 16), "here", 0, settings, self.agenda, log,
            slots=slots, seed=1, gone=self.gone, freed=lambda: None, execute=self._execute,
        )  # fmt: skip
        for number in range(workers):
            self.join(log, number)

    @staticmethod
    def join(
        log: SimulatedLog,
        number: int,
        fetch: FetchAddress | UnsetType = UNSET,
        pools: PoolAccess | UnsetType = UNSET,
    ) -> SimulatedSource:
        """The worker's chain, which has begun."""
        joined = WorkerJoined(
            name=f"w{number}", model=MODEL, role="decode", engine="simulated", block_size=BLOCK_SIZE,
            capacity_blocks=1000, context_max=8192, address="virtual:0",
            fetch=fetch, pools=pools,
        )  # fmt: skip
        source = SimulatedSource(log, KV, worker_id(number))
        source.append([joined])
        return source

    @property
    def scheduler(self) -> RequestScheduler:
        return self.replica.scheduler

    def _execute(self, command: SchedulerCommand) -> None:
        if isinstance(command, Publish):
            self.replica.publish(command.event)
        elif isinstance(command, PublishLocal):
            self.replica.publish_local(command.local)
        self.commands.append(command)

    def feed(self, event: SchedulerEvent) -> list[SchedulerCommand]:
        """What came of the event in its own step."""
        before = len(self.commands)
        self.replica.feed(event)
        return self.commands[before:]

    def arrive(
        self, name: str, tokens: int = 20, first: int = 0, adapter: str | None = None, **options: object
    ) -> RoutedRequest:
        """A request with the tokens from `first` on."""
        asked: GenerateRequest = replace(request(range(first, first + tokens), 4, name), adapter=adapter)
        routed = RoutedRequest(
            id=RequestId(name), model=MODEL, prompt_tokens=tokens, answer_max=4,
            answer=AnswerProgress(asked, 8192, BLOCK_SIZE, HashColumns(DigestStore(), 7)), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        self.feed(Arrived(routed))
        return routed

    def output(
        self, of: RoutedRequest, *tokens: int, finish: str | None = None, cached_tokens: int | None = None
    ) -> list[SchedulerCommand]:
        """The worker made tokens."""
        output = Output(tokens=tokens, finish=finish, cached_tokens=cached_tokens)
        return self.feed(OutputArrived(of.id, of.attempt, output, self.agenda.now_us))

    def hang_up(self, of: RoutedRequest) -> list[SchedulerCommand]:
        return self.feed(ClientGone(of.id, "client_gone", "abort"))

    def ticks(self, for_us: int = 0) -> None:
        """All that is due until then has happened."""
        until_us = self.agenda.now_us + for_us
        self.agenda.put(until_us, lambda: None)
        while self.agenda._heap and self.agenda._heap[0][0] <= until_us:
            self.agenda.advance()

    def published(self, kind: type[Event]) -> list[Event]:
        return [command.event for command in self.commands if type(command) is Publish and type(command.event) is kind]

    def done(self, kind: type[SchedulerCommand]) -> list[SchedulerCommand]:
        return [command for command in self.commands if type(command) is kind]

    @property
    def routed(self) -> list[str]:
        """In the order of their decisions."""
        return [event.request for event in self.published(RequestRouted)]  # type: ignore[union-attr]
