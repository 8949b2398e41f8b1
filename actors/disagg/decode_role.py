"""DecodeRole: a worker that decodes, and may have long prompts computed by others: the shell of `RemotePrefill`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, assert_never, cast

import msgspec

from actors.disagg import remote_prefill as machine
from actors.disagg.jobs_follower import JobsFollower
from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_peers import PrefillConnection
from actors.disagg.remote_prefill import DecodeCommand, RemotePrefill
from actors.disagg.worker_role import RoleContext, TransferRole, without_slow_tiers
from actors.engines.engine import EngineLoad
from actors.membership.registration import registration_of
from actors.transport.frames import FromPrefill, Generate
from core.errors import ContrailError
from core.events.kv import PREFILL
from core.generation import GenerateRequest, Hint, Output, PrefillReport
from core.ids import WorkerId, new_id
from core.kv_transfer import TRANSPORTS, KvPull
from core.prompt import Prompt, scope_bytes
from core.settings import RoutingSettings
from projections.folds.jobs_fold import JobsFold
from streams.live_settings import LiveSettings
from streams.machine_shell import MachineShell
from streams.registry import Change

LOG_AWAY_S = 0.5
"""A log that acknowledges nothing for so long is asked for no help."""

_logger = logging.getLogger(__name__)


class PendingAnswer:
    """One request: `decided` is set when its outputs may leave, or when it has failed."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.decided = asyncio.Event()
        self.report: PrefillReport | None = None
        """For the first output."""
        self.error: ContrailError | None = None
        self.pull: RunningPull | None = None
        """The source of the outputs; None if the engine computes the prompt."""

    def __repr__(self) -> str:
        return f"<PendingAnswer to {self.request.id}, {'decided' if self.decided.is_set() else 'waits'}>"


class RunningPull:
    """A request that the engine serves from fetched blocks. Its first output waits here until it may leave."""

    def __init__(self, outputs: AsyncGenerator[Output, None]) -> None:
        self.outputs = outputs
        self.first: Output | None = None
        self.task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """The engine has the request no more."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        await self.outputs.aclose()


class DecodeRole(TransferRole):
    """Requests end by themselves, and jobs with them; jobs that are open under an old id go on, since their prefill
    workers answer over their connections. To its machine it is the `DecodeView`."""

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        assert context.mirror is not None
        self.remote_prefill = RemotePrefill(self._kind, context.engine.info.slots, self)
        mirror = context.mirror
        self.overlap, self.loadable, self.holds = mirror.overlap, mirror.loadable, mirror.holds
        self._live = LiveSettings(context.routing, lambda: None)
        self._shell = MachineShell(self.remote_prefill, context.clock, self._execute)
        self._jobs_follower = JobsFollower(context.log, context.clock, context.key.chain_key, self._on_event)
        self._answers: dict[str, PendingAnswer] = {}
        self._pulls: dict[str, RunningPull] = {}
        """Pulls with outputs that may not leave yet."""
        self._ending: set[asyncio.Task[None]] = set()
        """The ends of pulls that were given up."""

    def __repr__(self) -> str:
        return f"<DecodeRole {self.remote_prefill!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it asked for."""
        return len(self.remote_prefill.jobs)

    @property
    def waits_elsewhere(self) -> int:
        """For jobs, and for blocks that others fetch."""
        return self.remote_prefill.waiting

    # --- as of `DecodeView` ----------------------------------------------------------------------------------------

    @property
    def routing(self) -> RoutingSettings:
        """The present settings."""
        return self._live.current

    @property
    def jobs(self) -> JobsFold:
        """The jobs stream, as far as it was read."""
        return self._jobs_follower.jobs

    @property
    def log_away(self) -> bool:
        """True if the log has acknowledged nothing for LOG_AWAY_S."""
        return self._context.current_publisher().jobs_away_s > LOG_AWAY_S

    def load(self) -> EngineLoad:
        """The engine's."""
        return self._context.engine.load()

    # ---------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Settings, prefill workers and the queue are followed from now on, as soon as registry and log are there."""
        await self._live.follow(self._context.registry)
        await self._context.registry.watch("workers/", self._on_registered)
        self._jobs_follower.start()

    async def stop(self) -> None:
        """The queue is followed no more, and the holders of blocks have heard that these are not wanted."""
        await self._jobs_follower.stop()
        for task in self._ending:
            task.cancel()
        if waited := self._ending | self._tasks:
            await asyncio.wait(waited)
        for pull in list(self._pulls.values()):
            await pull.close()
        self._shell.close()

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """From blocks of another engine, where that pays. The first output has the report."""
        return self._generate(frame.request, frame.hint)

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A frame of a prefill worker."""
        self._shell.feed(machine.PrefillFrameArrived(connection, frame))

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke."""
        self._shell.feed(machine.PrefillDisconnected(connection))

    def totals(self) -> dict[str, int]:
        """Prompts by where they were computed, and what was moved."""
        remote = self.remote_prefill
        counts = remote.counts
        recomputed = sum(counts.values()) - counts["pulled"] - counts["client_gone"]
        return {
            "prefill_local": sum(remote.verdicts.values()) - remote.verdicts["long"],
            "prefill_remote": counts["pulled"],
            "prefill_recomputed": recomputed,
            "blocks_pulled": remote.pulled_blocks,
            **{f"pulled_by_{name}": remote.transports[name] for name in TRANSPORTS},
        }

    def describe(self) -> dict[str, Any]:
        """Counts of prompts by place and reason, and the prefill workers that can be asked now."""
        remote = self.remote_prefill
        return {
            "prefill_workers": remote.peers.able(),
            "jobs_open": len(remote.jobs),
            "settings_revision": self._live.revision,
            "verdicts": dict(sorted(remote.verdicts.items())),
            "jobs": dict(sorted(remote.counts.items())),
            "engine": self._transfer.totals()._asdict(),
        }

    # --- events ----------------------------------------------------------------------------------------------------

    async def _generate(self, request: GenerateRequest, hint: Hint) -> AsyncGenerator[Output, None]:
        job, block_size = new_id(), self._context.engine.info.block_size
        scope = scope_bytes(request.adapter, request.cache_salt)
        prompt = Prompt(request.tokens, block_size, self._context.key.hash_seed, scope)
        answer = self._answers[job] = PendingAnswer(request)
        self._shell.feed(machine.RequestSubmitted(job, request, prompt, hint))
        try:
            await answer.decided.wait()
            if answer.error is not None:
                raise answer.error
            pull = answer.pull
            here = without_slow_tiers(request, hint)
            async with aclosing(self._start(here) if pull is None else pull.outputs) as outputs:
                first = await anext(outputs) if pull is None or pull.first is None else pull.first
                yield first if answer.report is None else msgspec.structs.replace(first, prefill=answer.report)
                async for output in outputs:
                    yield output
        finally:
            del self._answers[job]
            self._shell.feed(machine.RequestClosed(job))
            if answer.pull is not None:
                await answer.pull.outputs.aclose()

    def _start(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncGenerator[Output, None]:
        # by the engine's contract its iterator can be closed, as generators can
        return cast(AsyncGenerator[Output, None], self._context.engine.generate(request, pull))

    def _on_event(self, source: str, event: object) -> None:
        self._shell.feed(machine.JobEventRead(source, event))

    def _on_registered(self, change: Change) -> None:
        worker, registration = WorkerId(change.key.rpartition("/")[2]), registration_of(change)
        if registration is None:
            self._shell.feed(machine.PrefillRegistered(worker, None))
        elif registration.kv is not None and (registration.role, registration.model) == (PREFILL, self._kind.model):
            self._shell.feed(machine.PrefillRegistered(worker, registration.kv))

    # --- commands --------------------------------------------------------------------------------------------------

    def _execute(self, command: DecodeCommand) -> None:  # noqa: C901  # one line for each command
        match command:
            case machine.ComputeHere(job, report):
                self._compute(job, report)
            case machine.StartPull(job, pull):
                running = self._pulls[job] = RunningPull(self._start(self._answers[job].request, pull))
                running.task = self._spawn(self._pull(job, running), f"pull {job}")
            case machine.DeliverPulled(job):
                answer = self._answers[job.id]
                answer.report, answer.pull = job.report, self._pulls.pop(job.id)
                answer.decided.set()
            case machine.ConfirmPull(pull):
                self._spawn_short(self._transfer.confirm(pull))
            case machine.FailRequest(job, error):
                self._answers[job].error = error
                self._answers[job].decided.set()
            case machine.EndPull(job):
                self._spawn_ending(self._end_pull(job))
            case machine.ForgetCache(job):
                self._spawn_ending(self._forget(job))
            case machine.SpoilEngine(reason):
                self._context.leave(f"engine dead: {reason}")
            case machine.SendToPrefill(connection, frame):
                connection.send(frame)
            case machine.Decline(pull):
                self._spawn_short(self._transfer.decline(pull))
            case PublishJob(event):
                self._publish(event)
            case _:
                assert_never(command)

    def _compute(self, job: str, report: PrefillReport | None) -> None:
        answer = self._answers[job]
        answer.report = report
        answer.decided.set()
        if report is not None and report.outcome:
            why = report.detail or report.outcome
            _logger.warning("prefill here after all: %s", why, extra={"request_id": answer.request.id})

    async def _pull(self, job: str, running: RunningPull) -> None:
        try:
            running.first = await anext(running.outputs)
        except ContrailError as error:
            del self._pulls[job]
            await running.outputs.aclose()
            self._shell.feed(machine.PullFailed(job, error))
        else:
            self._shell.feed(machine.PullStarted(job, running.first.cached_tokens or 0))

    async def _end_pull(self, job: str) -> None:
        try:
            if (running := self._pulls.pop(job, None)) is not None:
                await running.close()
            await self._context.engine.settle()
        except Exception as error:  # noqa: BLE001  # of any kind: the machine judges the cache by it
            self._shell.feed(machine.PullSettled(job, error))
        else:
            self._shell.feed(machine.PullSettled(job))

    async def _forget(self, job: str) -> None:
        _logger.warning("blocks came that may be wrong: the cache is forgotten", extra={"job": job})
        try:
            await self._transfer.forget()
        except Exception as error:  # noqa: BLE001  # as above
            self._shell.feed(machine.CacheForgotten(job, error))
        else:
            self._shell.feed(machine.CacheForgotten(job))

    def _spawn_ending(self, work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
