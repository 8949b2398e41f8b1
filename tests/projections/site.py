"""A state with workers and replicas to talk to, for tests of views and decisions."""

from __future__ import annotations

from collections.abc import Iterable

from core.events import Event
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq, WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.state import Applied, State
from projections.policy.decide import Decision, decide
from projections.policy.view import RouteRequest, View
from tests.projections.facts import joined, stored
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

KV = StreamName("kv_0")
REPLICA = ReplicaId("ee" * 8)


class Site:
    """Workers speak, the state hears them; one replica (REPLICA) decides."""

    def __init__(self) -> None:
        self.state = State(CHAIN_KEY)
        self.pending_events = PendingEvents()
        self.local: dict[str, frozenset[WorkerId]] = {}
        self._speakers: dict[tuple[str, str], Speaker] = {}
        for stream in (KV, LOAD, ROUTING):
            self.state.open(stream, Epoch(1))

    def say(self, stream: StreamName, source: str, *events: Event) -> Applied | None:
        """The events are in the log and folded."""
        speaker = self._speakers.setdefault((stream, source), Speaker(stream, source))
        return self.hear(speaker.say(*events))

    def hear(self, said: Said) -> Applied | None:
        seq = StreamSeq(self.state.cursor[said.stream].seq + 1)
        return self.state.apply(said.stream, seq, said.subject, said.payload)

    def join(self, *workers: str, model: str = "tiny", block_size: int = 4) -> None:
        for worker in workers:
            self.say(KV, worker, joined(worker, model, block_size))

    def cache(self, worker: str, prompt: Prompt, blocks: int, tier: str = "device", skip: int = 0) -> None:
        """The worker has blocks `skip` to `blocks` of the prompt on that tier."""
        self.say(KV, worker, stored(*hashes_from_bytes(prompt.hashes())[skip:blocks], tier=tier))

    def exclude(self, reason: str, workers: Iterable[str]) -> None:
        self.local[reason] = frozenset(map(WorkerId, workers))

    @property
    def view(self) -> View:
        return View(self.state, REPLICA, self.pending_events, self.local)

    def decide(
        self,
        prompt: Prompt,
        settings: RoutingSettings | None = None,
        *,
        request: str = "r0",
        model: str = "tiny",
        seed: int = 0,
    ) -> Decision:
        asked = RouteRequest(RequestId(request), 0, model, prompt)
        return decide(self.view, asked, settings or RoutingSettings(policy="kv"), now_ms=1000, seed=seed)
