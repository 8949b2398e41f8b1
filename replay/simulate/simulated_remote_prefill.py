"""SimulatedRemotePrefill: a decode worker's side of remote prefill in a simulation: whether to ask, and what comes of
it.

As the real one (`actors.disagg.remote_prefill`), with its rules and bounds, but for what cannot happen here: no log is
away, nothing is mistaken for another prompt's blocks, and frames take no time. Blocks that have landed are right:
neither their holder nor their time matters after that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import xxhash

from actors.disagg.prefill_execution import WITHDRAWN
from actors.disagg.remote_prefill import MARGIN_PARTS, PULL_TIMEOUT_S
from actors.engines.simulated.block_pool import NEVER_WRITTEN
from actors.engines.simulated.engine_state import Abort, BlocksArrived, Fetch, Submit
from actors.engines.simulated.engine_step import StepResult
from core.events.jobs import PrefillCancelled
from core.generation import Hint, Output, PrefillReport
from core.ids import RequestId, WorkerId
from core.prompt import HASH_BYTES
from core.settings import RoutingSettings
from projections.folds.jobs_fold import JobsFold
from projections.policy.prefill_choice import PrefillInputs, decide_prefill
from replay.simulate.report import PrefillVerdict
from replay.simulate.simulated_log import SimulatedSource
from replay.simulate.simulated_prefill_queue import SimulatedPrefillJob, SimulatedPrefillQueue
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda

US_PER_MS = 1000
PULL_TIMEOUT_US = round(PULL_TIMEOUT_S * 1_000_000)


class SimulatedRemotePrefill:
    """One decode worker's; see `PrefillHooks`."""

    def __init__(
        self,
        worker: SimulatedWorker,
        queue: SimulatedPrefillQueue,
        said: SimulatedSource,
        agenda: Agenda,
        settings: RoutingSettings,
        *,
        jobs: JobsFold,
        judged: Callable[[PrefillVerdict], None],
    ) -> None:
        """`jobs` is the fold of the jobs stream, `judged` hears of each verdict when the first token is there."""
        self.id: WorkerId = worker.id
        self._worker = worker
        self._queue = queue
        self._said = said
        self._agenda = agenda
        self._settings = settings
        self._folded = jobs
        self._judged = judged
        self._open: dict[RequestId, SimulatedPrefillJob] = {}
        """Jobs that are not over."""
        self._ready: list[SimulatedPrefillJob] = []
        """Those of them whose blocks wait for a place in the engine."""
        self._behind: list[Submit] = []
        """Requests that wait for blocks that are being fetched for others."""
        self._prompts: dict[RequestId, bytes] = {}
        """Hashes of all requests that are here."""
        self._reports: dict[RequestId, PrefillReport] = {}
        """Of those without a job, until their first token."""

    def __repr__(self) -> str:
        counts = f"{len(self._open)} jobs open, {len(self._behind)} requests behind"
        return f"<SimulatedRemotePrefill of {self._worker!r}, {counts}>"

    # --- as of `PrefillHooks` ----------------------------------------------------------------------------------

    def submit(self, asked: Submit, hint: Hint) -> None:
        """The prompt is being computed, here or elsewhere, or waits for either."""
        request, known = asked.request.id, asked.known
        assert known is not None
        depth = self._worker.overlap(known.hashes)
        report = self._verdict(known.tokens, known.hashes, depth)
        self._prompts[request] = known.hashes
        if report.remote:
            self._ask(asked, hint, depth, report)
        else:
            self._reports[request] = report
            self._behind.append(asked)
            self._let_in()

    def first(self, request: RequestId, output: Output) -> Output:
        """The first tokens with the report; a job has its good end."""
        job = self._open.get(request)
        report = self._reports.pop(request) if job is None else self._pulled(job, output)
        if job is None:
            self._judged(PrefillVerdict(request, report.reason, report.outcome))
        return msgspec.structs.replace(output, prefill=report)

    def ended(self, request: RequestId) -> None:
        """The request is here no more."""
        del self._prompts[request]

    def stepped(self, done: StepResult) -> None:
        """What the engine wants is on its way, and who waits for a place there has it if there is one."""
        for fetch in done.fetches:
            self._fetch(fetch)
        if self._ready:
            self._enter_next()

    def died(self) -> None:
        """Nobody works for it any longer."""
        jobs = list(self._open.values())
        for job in jobs:
            job.over = True  # before anybody who is free takes the next one
        for job in jobs:
            self._over(job, "the decode worker is gone")

    # --- as of `JobRequester` ----------------------------------------------------------------------------------

    def answered(self, job: SimulatedPrefillJob) -> None:
        """Its blocks are fetched as soon as the engine has a place for it, or it is computed here."""
        self._agenda.cancel(job.timer)
        until_us = self._until_us(job)
        if self._agenda.now_us >= until_us:
            self._recompute(job, "lease")
            return
        job.timer = self._agenda.put(until_us, partial(self._recompute, job, "no_slot"))
        self._ready.append(job)
        self._enter_next()

    def lost(self, job: SimulatedPrefillJob) -> None:
        """It is given to another, or computed here, unless its blocks have landed."""
        if job.answered_us < 0:
            job.taker = None
            self._queue.again(job)
        elif not job.entered:
            self._recompute(job, "worker_gone")
        else:
            self._break_off(job)

    # --- verdicts ----------------------------------------------------------------------------------------------

    def _verdict(self, tokens: int, hashes: bytes, depth: int) -> PrefillReport:
        uncached, least = tokens - depth * self._worker.settings.block_size, self._settings.remote_prefill_min_tokens
        return decide_prefill(
            PrefillInputs(
                uncached_tokens=uncached,
                queued=len(self._folded.waiting()),
                workers=self._queue.workers,
                min_tokens=least,
                queue_max=self._settings.prefill_queue_max,
                busy=uncached > least and self._shared(hashes, depth),
            )
        )

    def _shared(self, hashes: bytes, depth: int) -> bool:
        """Whether the first block that is lacking is one of another request's that is here. O(requests)."""
        start, stop = depth * HASH_BYTES, (depth + 1) * HASH_BYTES
        block = hashes[start:stop]
        return bool(block) and any(other[start:stop] == block for other in self._prompts.values())

    # --- jobs --------------------------------------------------------------------------------------------------

    def _ask(self, asked: Submit, hint: Hint, depth: int, report: PrefillReport) -> None:
        """The job is in the queue, or somebody has it."""
        request, now_us, wait_ms = asked.request.id, self._agenda.now_us, self._settings.prefill_wait_max_ms
        name = xxhash.xxh3_64_hexdigest(f"job/{self.id}/{request}/{hint.attempt}".encode())
        job = SimulatedPrefillJob(name, asked, depth, msgspec.structs.replace(report, job=name), self, now_us)
        self._open[request] = job
        job.timer = self._agenda.put(now_us + wait_ms * US_PER_MS, partial(self._recompute, job, "deadline"))
        self._said.say([job.requested(hint, self._worker.settings.block_size, wait_ms, len(self._open))])
        self._queue.put(job, WorkerId(hint.prefer))

    def _until_us(self, job: SimulatedPrefillJob) -> int:
        """Until when the blocks are held, less a margin, counted from when they were taken on."""
        keep_ms = self._worker.settings.keep_ms
        return job.taken_us + (keep_ms - keep_ms // MARGIN_PARTS) * US_PER_MS

    def _enter_next(self) -> None:
        """The first that waits for a place in the engine has one, if it can begin at once."""
        load, entering = self._worker.load, sum(job.entered for job in self._open.values())
        if load.waiting or load.running + entering >= self._worker.settings.max_seqs:
            return
        job, now_us = self._ready.pop(0), self._agenda.now_us
        job.entered = True
        self._agenda.cancel(job.timer)
        until_us = min(self._until_us(job), now_us + PULL_TIMEOUT_US)
        job.timer = self._agenda.put(until_us, partial(self._break_off, job))
        self._worker.tell(job.asked._replace(pull=True))

    def _fetch(self, fetch: Fetch) -> None:
        """The blocks are on their way."""
        job = self._open.get(fetch.id)
        if job is None:
            return  # it was given up at this very time
        job.blocks = fetch.blocks
        job.landed_us = self._agenda.now_us + fetch.blocks * self._worker.settings.transfer_us_per_block
        self._worker.tell(BlocksArrived(fetch.id, (NEVER_WRITTEN,) * fetch.blocks))

    def _pulled(self, job: SimulatedPrefillJob, output: Output) -> PrefillReport:
        """The job's good end: the prompt was computed elsewhere."""
        now_us, taker = self._agenda.now_us, job.taker
        assert taker is not None
        pulled_tokens = job.prompt_tokens - (output.cached_tokens or 0)
        report = msgspec.structs.replace(
            job.report,
            worker=taker.id,
            outcome="pulled",
            pulled_tokens=pulled_tokens,
            wait_ms=(job.answered_us - job.asked_us) // US_PER_MS,
            pull_ms=(now_us - job.answered_us) // US_PER_MS,
        )
        self._end(job)
        self._said.say([job.pulled(report, self._worker.settings.block_bytes, len(self._open))])
        self._judged(job.verdict(report, now_us))
        self._let_in()
        return report

    def _break_off(self, job: SimulatedPrefillJob) -> None:
        """Nothing is fetched any more; what has landed stays."""
        if not 0 <= job.landed_us <= self._agenda.now_us:
            self._recompute(job, "transfer_failed")

    def _recompute(self, job: SimulatedPrefillJob, why: str) -> None:
        """The job's other end: the prompt is computed here."""
        waited_ms = (self._agenda.now_us - job.asked_us) // US_PER_MS
        self._end(job)
        self._said.say([PrefillCancelled(job=job.id, reason=why, wait_ms=waited_ms, open=len(self._open))])
        self._reports[job.request] = msgspec.structs.replace(job.report, outcome=why, wait_ms=waited_ms)
        if job.entered:
            self._worker.tell(Abort(job.request))
        self._worker.tell(job.asked)
        self._let_in()

    def _end(self, job: SimulatedPrefillJob) -> None:
        del self._open[job.request]
        if job in self._ready:
            self._ready.remove(job)
        self._over(job)

    def _over(self, job: SimulatedPrefillJob, why: str = WITHDRAWN) -> None:
        job.over = True
        self._agenda.cancel(job.timer)
        if job.taker is not None:
            job.taker.release(job, why)

    def _let_in(self) -> None:
        """Those that wait for other requests' blocks are with the engine, unless they still do."""
        behind, self._behind = self._behind, []
        for asked in behind:
            assert asked.known is not None
            hashes = asked.known.hashes
            if any(job.lands_in(hashes) for job in self._open.values()):
                self._behind.append(asked)
            else:
                self._worker.tell(asked)
