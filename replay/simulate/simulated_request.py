"""SimulatedRequest: one request of a simulation, with its answer by counts and what a report needs of it."""

from __future__ import annotations

from actors.engines.simulated.sequence import answer_hash
from actors.router.routed_request import RoutedRequest
from core.events import RequestRouted
from core.generation import GenerateRequest, Output, Sampling, engine_priority
from core.keys import session_key
from core.prompt import HashedPrompt, hashes_to_bytes
from replay.simulate.report import ServedRequest
from replay.simulate.simulated_log import KEY
from replay.simulate.workload import Arrival

MODEL = "simulated"


class SimulatedAnswer:
    """An `actors.router.routed_request.Answer` of which only the length is known. Any worker continues it."""

    __slots__ = ("_arrival", "_block_size", "delivered", "passthrough")

    def __init__(self, arrival: Arrival, block_size: int) -> None:
        self.delivered = 0
        self.passthrough = True
        self._arrival = arrival
        self._block_size = block_size

    def __repr__(self) -> str:
        return f"<SimulatedAnswer {self.delivered} of {self._arrival.output_tokens} tokens of {self._arrival.id}>"

    @property
    def complete(self) -> bool:
        """All tokens are delivered; only the end is not."""
        return self.delivered >= self._arrival.output_tokens

    @property
    def repeating(self) -> bool:
        """Never: no delivered token is made again."""
        return False

    def payload(self, deadline_ms: int | None) -> GenerateRequest:
        """The part of the answer still to be generated; the prompt goes beside it, by its hashes."""
        assert deadline_ms is None
        it, sampling = self._arrival, Sampling(max_tokens=self._arrival.output_tokens - self.delivered)
        priority = engine_priority(it.tenant, it.priority)
        return GenerateRequest(id=it.id, tokens=b"", sampling=sampling, priority=priority)

    def prompt(self, payload: GenerateRequest) -> HashedPrompt:
        """The prompt with the answer so far behind it, by the hashes of its full blocks."""
        it, size = self._arrival, self._block_size
        answer = range(it.prompt_tokens // size, (it.prompt_tokens + self.delivered) // size)
        hashes = it.hashes + hashes_to_bytes(answer_hash(payload.id, place) for place in answer)
        return HashedPrompt(it.prompt_tokens + self.delivered, size, hashes)

    def keep(self, output: Output) -> None:
        """More tokens were delivered."""
        self.delivered += len(output.tokens)

    def accept(self, output: Output) -> Output:
        """All of it is new."""
        self.keep(output)
        return output


class SimulatedRequest:
    """Its state in the scheduler is `routed`; all times are virtual microseconds."""

    __slots__ = (
        "_decision",
        "arrival",
        "arrived_us",
        "cached",
        "first_us",
        "number",
        "place",
        "predicted",
        "replica",
        "routed",
        "sent_us",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, number: int, arrived_us: int, replica: int, block_size: int) -> None:
        """`number` counts the arrivals of the run."""
        self.arrival = arrival
        self.number = number
        self.arrived_us = arrived_us
        self.replica = replica
        self.first_us = self.sent_us = -1
        self.place = -1
        """In the fleet, of the worker that serves it, or did last."""
        self.cached = self.predicted = 0
        """Of the attempt that gave the first token."""
        self._decision: RequestRouted | None = None
        session = session_key(f"{arrival.tenant}/{arrival.session}", KEY.hash_seed) if arrival.session else ""
        self.routed = RoutedRequest(
            id=arrival.id,
            model=MODEL,
            prompt_tokens=arrival.prompt_tokens,
            answer_max=arrival.output_tokens,
            answer=SimulatedAnswer(arrival, block_size),
            tenant=arrival.tenant,
            priority=arrival.priority,
            session=session,
        )

    def __repr__(self) -> str:
        return f"<SimulatedRequest {self.routed!r}>"

    def sent(self, decision: RequestRouted, place: int, now_us: int) -> None:
        """The present attempt is with the worker in this place."""
        self._decision, self.place, self.sent_us = decision, place, now_us

    def delivered(self) -> None:
        """The client has more of the answer."""
        if self.first_us < 0:
            assert self._decision is not None
            self.first_us, self.cached = self.routed.first_token_us, self.routed.cached_tokens
            self.predicted = self._decision.predicted_cached_tokens

    def served(self, end_us: int, failed: str = "") -> ServedRequest:
        """The result of the request; `failed` is the reason if it failed."""
        routed = self.routed
        return ServedRequest(
            id=self.arrival.id,
            arrival_us=self.arrived_us,
            routed_us=self.sent_us,
            first_us=-1 if failed else self.first_us,
            end_us=end_us,
            worker=-1 if failed else self.place,
            replica=self.replica,
            prompt_tokens=self.arrival.prompt_tokens,
            cached_tokens=self.cached,
            predicted_tokens=self.predicted,
            output_tokens=routed.answer.delivered,
            attempts=0 if routed.payload is None else routed.attempt + 1 - routed.declined,
            declined=routed.declined,
            why=failed,
        )
