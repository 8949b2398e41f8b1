"""SimulatedPrefillExecution: a prefill worker's side of jobs in a simulation: one at a time, its blocks held until they
are pulled.

As the real one (`actors.disagg.prefill_execution`), whose frames take no time here.
"""

from __future__ import annotations

from actors.disagg.prefill_execution import WITHDRAWN
from actors.engines.simulated.engine_state import Abort, Free, PromptPrefilled, Submit
from actors.engines.simulated.engine_step import StepResult
from core.events.jobs import PrefillCompleted, PrefillFailed, PrefillStarted
from core.generation import GenerateRequest, Hint, Output, Sampling
from core.ids import RequestId, WorkerId
from core.kv_transfer import KvBlocks
from replay.simulate.simulated_log import SimulatedSource
from replay.simulate.simulated_prefill_queue import SimulatedPrefillJob, SimulatedPrefillQueue
from replay.simulate.simulated_request import MODEL
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda

US_PER_MS = 1000


class SimulatedPrefillExecution:
    """One prefill worker's; see `PrefillHooks`."""

    def __init__(
        self, worker: SimulatedWorker, queue: SimulatedPrefillQueue, jobs: SimulatedSource, agenda: Agenda
    ) -> None:
        self.id: WorkerId = worker.id
        self.place = worker.place
        self._worker = worker
        self._queue = queue
        self._jobs = jobs
        self._agenda = agenda
        self._computing: SimulatedPrefillJob | None = None
        self._held: dict[str, SimulatedPrefillJob] = {}
        """Jobs whose blocks are held."""

    def __repr__(self) -> str:
        return f"<SimulatedPrefillExecution of {self._worker!r}, computes {self._computing}, holds {len(self._held)}>"

    def take(self, job: SimulatedPrefillJob, delivery: int) -> None:
        """It computes the prompt now."""
        assert self._computing is None
        job.take(self, self._agenda.now_us)
        self._computing = job
        self._jobs.say(
            [PrefillStarted(job=job.id, requester=job.desk.id, attempt=job.attempt, delivery=delivery, open=1)]
        )
        asked = job.asked.request
        request = GenerateRequest(
            id=RequestId(job.id), tokens=b"", sampling=Sampling(max_tokens=1), priority=asked.priority
        )
        self._worker.tell(Submit(request, hold=True, known=job.asked.known))

    def release(self, job: SimulatedPrefillJob, why: str = WITHDRAWN) -> None:
        """Nothing is computed or held for it any more; another one may be."""
        if not self._worker.alive:
            return
        if self._held.pop(job.id, None) is not None:
            self._worker.tell(Free(RequestId(job.id), fetched=False))
            return
        assert job is self._computing
        self._computing = None
        self._worker.tell(Abort(RequestId(job.id)))
        self._jobs.say([PrefillFailed(job=job.id, requester=job.desk.id, attempt=job.attempt, reason=why, open=0)])
        self._queue.free(self)

    # --- as of `PrefillHooks` ----------------------------------------------------------------------------------

    def submit(self, asked: Submit, hint: Hint) -> None:
        """Nobody sends requests to a prefill worker."""
        raise AssertionError(f"{asked.request.id}, attempt {hint.attempt}, was sent to a prefill worker")

    def first(self, request: RequestId, output: Output) -> Output:
        """It makes no tokens."""
        raise AssertionError(f"{request} has a token of a prefill worker: {output}")

    def ended(self, request: RequestId) -> None:
        """It serves nobody."""

    def stepped(self, done: StepResult) -> None:
        """What was computed is held, log and requester know it, and the next job is begun."""
        for prefilled in done.prefilled:
            self._complete(prefilled)

    def died(self) -> None:
        """Whoever it computed or held something for knows that it has ended."""
        self._queue.leave(self)
        computing = [] if self._computing is None else [self._computing]
        for job in [*computing, *self._held.values()]:
            job.desk.lost(job)

    def _complete(self, prefilled: PromptPrefilled) -> None:
        job = self._computing
        if job is None or job.id != prefilled.id:
            return  # it was over at this very time
        self._computing, self._held[job.id] = None, job
        job.answered_us, job.cached_tokens = self._agenda.now_us, prefilled.cached_tokens
        self._jobs.say([self._completed(job, prefilled)])
        self._worker.count(prefilled.tokens, prefilled.cached_tokens)
        self._queue.free(self)
        job.desk.answered(job)

    def _completed(self, job: SimulatedPrefillJob, prefilled: PromptPrefilled) -> PrefillCompleted:
        settings = self._worker.settings
        return PrefillCompleted(
            job=job.id,
            requester=job.desk.id,
            attempt=job.attempt,
            model=MODEL,
            block_size=settings.block_size,
            layout=settings.layout(MODEL),
            digest=job.answer_digest,
            blocks=KvBlocks(request=job.id, ids=(prefilled.blocks,), tokens=prefilled.tokens),
            keep_ms=settings.keep_ms,
            compute_ms=(self._agenda.now_us - job.taken_us) // US_PER_MS,
            cached_tokens=prefilled.cached_tokens,
            open=0,
        )
