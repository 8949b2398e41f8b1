"""SimulatedRequest: one request of a simulation in progress, over all its attempts."""

from __future__ import annotations

from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.sequence import BlockHashPrompt, answer_hash
from actors.router.routed_request import RetryBudget
from core.events import Event, RequestFinished, RequestMigrated, RequestPrefilled, RequestRouted
from core.generation import GenerateRequest, Hint, Output, PrefillReport, Sampling
from core.ids import WorkerId
from core.keys import session_key
from core.prompt import HashedPrompt, hashes_to_bytes
from projections.policy.view import RouteRequest
from replay.simulate.report import ServedRequest
from replay.simulate.simulated_log import KEY
from replay.simulate.workload import Arrival

MODEL = "simulated"


class SimulatedRequest:
    """Says what a real replica says of its requests (`actors.router.routed_request`), with the times of the
    simulation."""

    __slots__ = ("_attempt_cached", "_attempt_first_us", "_attempt_told", "_cached", "_place", "_predicted",
                 "_routed_us", "arrival", "arrived_us", "attempt", "block_size", "declined", "first_us", "number",
                 "others_differ", "placed_us", "replica", "routed", "told", "tries", "worker")  # fmt: skip

    def __init__(self, arrival: Arrival, number: int, arrived_us: int, replica: int, block_size: int) -> None:
        """`number` counts the arrivals of the run."""
        self.arrival = arrival
        self.number = number
        self.arrived_us = arrived_us
        self.replica = replica
        self.block_size = block_size
        self.placed_us = -1
        """When it had a place in the fleet; -1 until then."""
        self.attempt = -1
        """The present one."""
        self.worker = WorkerId("")
        """Who serves it, or did last."""
        self.tries = RetryBudget()
        self.declined = 0
        """Attempts in a row, from the first, that a worker declined."""
        self.told = 0
        """Tokens of the answer that the client has."""
        self.routed: RequestRouted | None = None
        self.first_us = -1
        self.others_differ = -1
        """See `ServedRequest`."""
        self._place = -1
        self._routed_us = -1
        self._cached = self._predicted = 0
        """Of the attempt that gave the first token."""
        self._attempt_told = self._attempt_cached = 0
        self._attempt_first_us = -1

    def __repr__(self) -> str:
        return (
            f"<SimulatedRequest of {self.arrival.id}, attempt {self.attempt} on {self.worker}, {self.told} tokens told>"
        )

    def asked(self) -> RouteRequest:
        """What the next attempt asks of a decision: the prompt with the answer so far behind it."""
        self.attempt += 1
        prompt = HashedPrompt(self.arrival.prompt_tokens + self.told, self.block_size, self._hashes())
        it = self.arrival
        session = (
            session_key(f"{it.tenant}/{it.session}", KEY.hash_seed) if it.session else ""
        )  # as `actors.router.dispatch`
        return RouteRequest(it.id, self.attempt, MODEL, prompt, it.tenant, it.priority, session)

    def sent(self, routed: RequestRouted, place: int, now_us: int) -> Submit:
        """The attempt is on its way to its worker, in this place of the fleet; returns what the engine is told."""
        self.routed, self.worker, self._place, self._routed_us = routed, WorkerId(routed.worker), place, now_us
        self._attempt_told = self._attempt_cached = 0
        self._attempt_first_us = -1
        sampling = Sampling(max_tokens=self.arrival.output_tokens - self.told)
        request = GenerateRequest(id=self.arrival.id, tokens=b"", sampling=sampling, priority=self.arrival.priority)
        return Submit(request, known=BlockHashPrompt(routed.prompt_tokens, routed.hashes))

    def hint(self, *, if_free: bool) -> Hint:
        """What its worker is told beside the request."""
        routed = self.routed
        assert routed is not None
        return Hint(self.attempt, routed.prefer, routed.prefer_tokens, routed.prefill_tokens, if_free)

    def heard(self, output: Output, at_us: int) -> list[Event]:
        """Tokens have come; returns what is to be said of it."""
        said: list[Event] = []
        if self._attempt_first_us < 0:
            self._first(output, at_us)
            said.append(self._prefilled(output.prefill))
        self.told += len(output.tokens)
        self._attempt_told += len(output.tokens)
        if output.finish is not None:
            said.append(self.finished(output.finish, at_us))
        return said

    def finished(self, outcome: str, at_us: int, detail: str = "") -> RequestFinished:
        """The attempt has ended."""
        assert self.routed is not None
        return RequestFinished(
            request=self.arrival.id,
            attempt=self.attempt,
            outcome=outcome,
            prompt_tokens=self.routed.prompt_tokens,
            output_tokens=self._attempt_told,
            cached_tokens=self._attempt_cached,
            ttft_ms=self._since_ms(self._attempt_first_us) if self._attempt_first_us >= 0 else -1,
            duration_ms=self._since_ms(at_us),
            detail=detail,
        )

    def migrated(self, why: str) -> RequestMigrated:
        """The present attempt goes on with an answer that the worker before it began; to be said before it is sent."""
        return RequestMigrated(
            request=self.arrival.id, attempt=self.attempt, worker=self.worker, told_tokens=self.told, reason=why
        )

    def served(self, end_us: int, failed: str = "") -> ServedRequest:
        """What became of it; `failed` says why it did, if it did."""
        return ServedRequest(
            id=self.arrival.id,
            arrival_us=self.arrived_us,
            routed_us=self._routed_us,
            first_us=-1 if failed else self.first_us,
            end_us=end_us,
            worker=-1 if failed else self._place,
            replica=self.replica,
            prompt_tokens=self.arrival.prompt_tokens,
            cached_tokens=self._cached,
            predicted_tokens=self._predicted,
            output_tokens=self.told,
            attempts=self.attempt + 1 - self.declined,
            others_differ=self.others_differ,
            declined=self.declined,
            why=failed,
        )

    def _first(self, output: Output, at_us: int) -> None:
        self._attempt_first_us = at_us
        self._attempt_cached = output.cached_tokens or 0
        if self.first_us < 0:
            assert self.routed is not None
            self.first_us = at_us
            self._cached, self._predicted = self._attempt_cached, self.routed.predicted_cached_tokens

    def _prefilled(self, report: PrefillReport | None) -> RequestPrefilled:
        return RequestPrefilled(
            request=self.arrival.id,
            attempt=self.attempt,
            cached_tokens=self._attempt_cached,
            ttft_ms=self._since_ms(self._attempt_first_us),
            prefill=report,
        )

    def _since_ms(self, at_us: int) -> int:
        return (at_us - self.arrived_us) // 1000

    def _hashes(self) -> bytes:
        """Of all full blocks of prompt and answer so far."""
        prompt, size = self.arrival.prompt_tokens, self.block_size
        answer = range(prompt // size, (prompt + self.told) // size)
        return self.arrival.hashes + hashes_to_bytes(answer_hash(self.arrival.id, place) for place in answer)
