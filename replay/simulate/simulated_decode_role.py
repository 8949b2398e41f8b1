"""SimulatedDecodeRole: drives a decode worker's machine of remote prefill in a simulation: frames take no time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never, cast

import msgspec
import xxhash

from actors.disagg import remote_prefill as machine
from actors.disagg.prefill_job import PrefillJob, PublishJob
from actors.disagg.prefill_peers import Kind
from actors.disagg.remote_prefill import DecodeCommand, RemotePrefill
from actors.engines.engine import EngineLoad, TransferFailed
from actors.engines.simulated.block_pool import NEVER_WRITTEN
from actors.engines.simulated.engine_state import Abort, BlocksArrived, Fetch, Forget, Submit
from actors.engines.simulated.engine_step import StepResult
from actors.transport.frames import FromPrefill
from core.events.jobs import PrefillRequested
from core.generation import Hint, Output, PrefillReport
from core.ids import RequestId, WorkerId
from core.prompt import HashedPrompt, Prompt
from core.settings import RoutingSettings
from projections.folds.jobs_fold import JobsFold
from replay.simulate.report import PrefillVerdict
from replay.simulate.simulated_log import SimulatedSource
from replay.simulate.simulated_prefill_role import (
    SimulatedConnection,
    SimulatedPeers,
    SimulatedPrefillQueue,
    to_request,
)
from replay.simulate.simulated_request import MODEL
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda, VirtualShell

NOT_LANDED = 1 << 62
"""When blocks land that the engine has not asked for yet."""


class SimulatedDecodeRole:
    """One decode worker's; see `PrefillHooks`. To its machine it is the `DecodeView`."""

    log_away = False

    def __init__(
        self,
        worker: SimulatedWorker,
        peers: SimulatedPeers,
        queue: SimulatedPrefillQueue,
        source: SimulatedSource,
        agenda: Agenda,
        routing: RoutingSettings,
        *,
        jobs: JobsFold,
        on_verdict: Callable[[PrefillVerdict], None],
    ) -> None:
        """`jobs` is the fold of the jobs stream; `on_verdict` is called with each verdict at the first token."""
        settings = worker.settings
        self.id: WorkerId = worker.id
        self.routing = routing
        self.jobs = jobs
        self.remote_prefill = RemotePrefill(
            Kind(MODEL, settings.block_size, settings.layout(MODEL)), settings.max_seqs, self
        )
        self._worker = worker
        self._peers = peers
        self._queue = queue
        self._source = source
        self._agenda = agenda
        self._on_verdict = on_verdict
        self._asked: dict[str, Submit] = {}
        """Requests that are here, by the machine's ids of them."""
        self._ids: dict[RequestId, str] = {}
        self._reports: dict[str, PrefillReport] = {}
        """Requests with first tokens on hold, until the tokens may leave."""
        self._landing_us: dict[str, int] = {}
        """Pulls under way, and when their blocks land."""
        self._shell = VirtualShell(self.remote_prefill, agenda, self._execute)
        peers.add_decode(self)

    def __repr__(self) -> str:
        return f"<SimulatedDecodeRole of {self._worker!r}, {self.remote_prefill!r}>"

    # --- as of `DecodeView` ----------------------------------------------------------------------------------------

    def load(self) -> EngineLoad:
        """The engine's."""
        return self._worker.load

    def overlap(self, prompt: Prompt) -> int:
        """Number of leading blocks of the prompt in the cache."""
        return self._worker.overlap(prompt.hashes())

    loadable = overlap
    """Of any tier, as published."""

    def holds(self, block: int) -> bool:
        """The block is in the cache."""
        return self._worker.holds(block)

    # --- prefill workers -------------------------------------------------------------------------------------------

    def connect(self, connection: SimulatedConnection) -> None:
        """A prefill worker is registered, connected and introduced."""
        self._shell.feed(machine.PrefillRegistered(connection.prefill.id, connection.prefill.address))
        self._shell.feed(machine.PrefillFrameArrived(connection, connection.prefill.introduction))

    def on_frame(self, connection: SimulatedConnection, frame: FromPrefill) -> None:
        """A frame of a prefill worker."""
        self._shell.feed(machine.PrefillFrameArrived(connection, frame))

    def on_disconnect(self, connection: SimulatedConnection) -> None:
        """A prefill worker has ended: blocks that have not landed will not."""
        jobs, now_us = self.remote_prefill.jobs, self._agenda.now_us
        broken = [
            job
            for job, at_us in self._landing_us.items()
            if at_us > now_us and (taker := jobs[job].taker) is not None and taker.connection is connection
        ]
        self._shell.feed(machine.PrefillDisconnected(connection))
        self._shell.feed(machine.PrefillRegistered(connection.prefill.id, None))
        for job in broken:
            self._abort(job)
            self._shell.feed(machine.PullFailed(job, TransferFailed("the holder of the blocks is gone")))

    # --- as of `PrefillHooks` --------------------------------------------------------------------------------------

    def submit(self, asked: Submit, hint: Hint) -> None:
        """The prompt is being computed, here or elsewhere, or waits for either."""
        known, request = asked.known, asked.request
        assert known is not None
        job = xxhash.xxh3_64_hexdigest(f"job/{self.id}/{request.id}/{hint.attempt}".encode())
        self._asked[job], self._ids[request.id] = asked, job
        prompt = HashedPrompt(known.tokens, self._worker.settings.block_size, known.hashes)
        self._shell.feed(machine.RequestSubmitted(job, to_request(request, known), prompt, hint))

    def on_first_tokens(self, request: RequestId, output: Output) -> Output | None:
        """The first tokens with the report; None if they may not leave."""
        job = self._ids[request]
        if job in self._landing_us:
            self._shell.feed(machine.PullStarted(job, output.cached_tokens or 0))
        else:
            here = self._reports[job]
            self._on_verdict(PrefillVerdict(request, here.reason, here.outcome))
        report = self._reports.pop(job, None)
        return None if report is None else msgspec.structs.replace(output, prefill=report)

    def on_request_ended(self, request: RequestId) -> None:
        """The request is here no more."""
        job = self._ids.pop(request)
        del self._asked[job]
        self._shell.feed(machine.RequestClosed(job))

    def on_step(self, done: StepResult) -> None:
        """Blocks that the engine wants are on their way; a slot may be free."""
        for fetch in done.fetches:
            self._fetch(fetch)
        if self.remote_prefill.ready:
            self._shell.feed(machine.EngineStepped())

    @property
    def is_quiet(self) -> bool:
        """Its jobs are those of requests that it serves."""
        return True

    def drain(self) -> None:
        """Requests that it has may still need a job."""

    def on_worker_ended(self) -> None:
        """Its connections break."""
        self._shell.close()
        self._peers.remove(self.id)

    def on_loss_written(self) -> None:
        """It is registered no more."""
        self._peers.lost.add(self.id)

    # ---------------------------------------------------------------------------------------------------------------

    def _execute(self, command: DecodeCommand) -> None:  # noqa: C901  # one line for each command
        worker = self._worker
        match command:
            case machine.ComputeHere(job, report):
                assert report is not None
                self._reports[job] = report
                worker.feed_engine(self._asked[job])
            case machine.StartPull(job):
                self._landing_us[job] = NOT_LANDED
                worker.feed_engine(self._asked[job]._replace(pull=True))
            case machine.DeliverPulled(job):
                self._deliver(job)
            case machine.EndPull(job):
                self._abort(job)
                self._soon(machine.PullSettled(job))
            case machine.ForgetCache(job):
                worker.feed_engine(Forget())
                self._soon(machine.CacheForgotten(job))
            case machine.SendToPrefill(connection, frame):
                connection.send(frame)
            case machine.Decline() | machine.ConfirmPull():
                pass  # the holder hears it by Release; slower tiers have no wrong blocks, as none is simulated
            case PublishJob(event):
                self._source.append([event])
                if isinstance(event, PrefillRequested):
                    self._queue.put(event.job, self.id)
            case machine.FailRequest() | machine.SpoilEngine():
                raise AssertionError(f"a simulated engine does not fail: {command}")
            case _:
                assert_never(command)

    def _soon(self, event: machine.PullSettled | machine.CacheForgotten) -> None:
        """The event comes behind the engine's next step, which is now."""
        self._agenda.put(self._agenda.now_us, partial(self._feed_if_alive, event))

    def _feed_if_alive(self, event: machine.PullSettled | machine.CacheForgotten) -> None:
        if self._worker.alive:
            self._shell.feed(event)

    def _abort(self, job: str) -> None:
        del self._landing_us[job]
        self._worker.feed_engine(Abort(self._asked[job].request.id))

    def _fetch(self, fetch: Fetch) -> None:
        job = self._ids[fetch.id]
        if job in self._landing_us:  # else it was given up at this very time
            self._landing_us[job] = self._agenda.now_us + fetch.blocks * self._worker.settings.transfer_us_per_block
            self._worker.feed_engine(BlocksArrived(fetch.id, (NEVER_WRITTEN,) * fetch.blocks))

    def _deliver(self, job: PrefillJob) -> None:
        """The pulled tokens may leave."""
        report, answer, taker = job.report, job.answer, job.taker
        assert report is not None
        assert answer is not None
        assert taker is not None
        del self._landing_us[job.id]
        self._reports[job.id] = report
        verdict = PrefillVerdict(
            request=job.request.id,
            reason=report.reason,
            outcome=report.outcome,
            place=cast(SimulatedConnection, taker.connection).prefill.place,
            pulled_tokens=report.pulled_tokens,
            blocks=job.prompt.blocks_to_hold - job.cached_tokens // job.prompt.block_size,
            cached_tokens=answer.cached_tokens,
            computed_tokens=job.prompt.tokens - answer.cached_tokens,
            queue_us=job.claimed_us - job.asked_us,
            wait_us=job.answered_us - job.asked_us,
            pull_us=self._agenda.now_us - job.answered_us,
        )
        self._on_verdict(verdict)
