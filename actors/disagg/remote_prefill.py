"""RemotePrefill: a decode worker's side of remote prefill: the verdict, the pull, its checks, and the local fallback.

1. The verdict is `decide_prefill`; what it rested on travels with the first tokens and stands in the log.
2. A job has one end here, whatever happens: its blocks are pulled and confirmed, or it is cancelled and the engine
   computes the prompt itself. The only clock is our own: what we wait counts from the asking, what the holder promised
   from its claim, before which nothing can have been held.
3. Nothing is pulled that `core.kv_transfer.mismatch` objects to, or with too little left of the time that the holder
   promised. No token leaves before the holder said that the blocks were held until they had come. If it does not say
   so, all that is cached is forgotten: wrong blocks would be found under right names. That goes on when who asked waits
   no longer; and where it cannot be done, the engine must not serve any more.
   Logprobs of a prompt and embeddings are no part of its blocks: such a prompt is computed here, without a verdict.
4. Who takes a job loses it with its connection; it is offered again at once, and the queue hands it out again too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, aclosing, suppress
from typing import NamedTuple, cast

import msgspec

from actors.disagg.prefill_job import PrefillAnswer, PrefillJob, Recompute
from actors.disagg.prefill_job_client import PrefillJobClient
from actors.disagg.unverified_blocks import UnverifiedBlocks
from actors.engines.engine import BlockTransfer, Engine, TransferFailed
from actors.kv_cache.cache_mirror import CacheMirror
from core.clock import Clock
from core.errors import EngineDead
from core.generation import NO_HINT, TASK_GENERATE, GenerateRequest, Hint, Output, PrefillReport
from core.kv_transfer import KvPull
from core.prompt import Prompt, scope_bytes
from projections.folds.jobs_fold import JobsFold
from projections.policy.prefill_choice import PrefillInputs, decide_prefill
from streams.live_settings import LiveSettings

PULL_TIMEOUT_S = 10.0
"""From handing a pull to the engine to its first token: NIXL itself waits for a holder that hangs for ever."""
SLOT_LOOK_S = 0.005
"""Between looks at whether the engine has a slot free."""
MARGIN_PARTS = 8
"""One part in so many of the time that blocks are held is left unused, for what clocks and networks do."""

_logger = logging.getLogger(__name__)


class StreamingAnswer(NamedTuple):
    """An answer that streams: its first output is here, and nothing stands against it."""

    first: Output
    rest: AsyncGenerator[Output, None]
    report: PrefillReport


class RemotePrefill:
    """One decode worker's. `jobs` is the queue as the log tells it."""

    def __init__(
        self,
        engine: Engine,
        mirror: CacheMirror,
        job_client: PrefillJobClient,
        live: LiveSettings,
        clock: Clock,
        hash_seed: int,
        *,
        jobs: Callable[[], JobsFold],
        broken: Callable[[str], None],
    ) -> None:
        """`broken` hears why the engine must serve nobody any more."""
        assert engine.transfer is not None
        self.job_client = job_client
        self.verdicts = Counter[str]()
        """By reason."""
        self.pulled_blocks = 0
        self._engine = engine
        self._transfer: BlockTransfer = engine.transfer
        self._overlap = mirror.overlap
        self._holds = mirror.holds
        self._live = live
        self._clock = clock
        self._hash_seed = hash_seed
        self._jobs = jobs
        self._broken = broken
        self._unverified = UnverifiedBlocks()
        self._judging: dict[asyncio.Task[None], PrefillJob] = {}
        """What finds out about blocks that came of pulls that were given up."""
        self._spoiled: list[ExitStack] = []
        """Unverified blocks that stay so for ever."""
        self._entering = 0
        """Pulls that the engine was given and of which no token came."""

    def __repr__(self) -> str:
        return f"<RemotePrefill {self.job_client!r}, {self._unverified!r}>"

    @property
    def waiting(self) -> int:
        """Requests that wait for others, and not for the engine."""
        return len(self.job_client.jobs) + self._unverified.waiting

    async def generate(self, request: GenerateRequest, hint: Hint = NO_HINT) -> AsyncGenerator[Output, None]:
        """As the engine's own; the first output has the report. It takes no error to compute a prompt here."""
        info = self._engine.info
        scope = scope_bytes(request.adapter, request.cache_salt)
        prompt = Prompt(request.tokens, info.block_size, self._hash_seed, scope)
        if request.task != TASK_GENERATE or request.sampling.prompt_logprobs >= 0:
            async with aclosing(self._here(request, prompt)) as outputs:
                async for output in outputs:
                    yield output
            return
        with self._unverified.live(prompt):
            await self._unverified.clear(prompt)
            depth, begun = self._overlap(prompt), None
            report = self._verdict(prompt, depth)
            if report.remote:
                job = self.job_client.open(
                    request,
                    scope + request.tokens,
                    depth * info.block_size,
                    self._live.current.prefill_wait_max_ms,
                    hint,
                )
                try:
                    with self._unverified.about(prompt, depth + 1):
                        begun, report = await self._try_remote(job, prompt, report)
                finally:
                    if job not in self._judging.values():
                        self.job_client.cancel(job, "client_gone")  # nothing, if it has its end
            if begun is None:
                await self._unverified.clear(prompt)
                begun = await self._begin(request, report)
            async with aclosing(begun.rest) as rest:
                yield msgspec.structs.replace(begun.first, prefill=begun.report)
                async for output in rest:
                    yield output

    async def _here(self, request: GenerateRequest, prompt: Prompt) -> AsyncGenerator[Output, None]:
        """What comes of computing the prompt itself, and not with its blocks: there is nothing to decide, nor to
        report."""
        with self._unverified.live(prompt):
            await self._unverified.clear(prompt)
            # by the engine's contract its iterator can be closed, as generators can
            async with aclosing(cast(AsyncGenerator[Output, None], self._engine.generate(request))) as outputs:
                async for output in outputs:
                    yield output

    def _verdict(self, prompt: Prompt, depth: int) -> PrefillReport:
        settings, job_client = self._live.current, self.job_client
        uncached = prompt.tokens - depth * prompt.block_size
        waiting = self._jobs().waiting().keys() | {job.id for job in job_client.jobs.values() if job.attempt < 0}
        waiting -= {job.id for job in job_client.jobs.values() if job.attempt >= 0}
        report = decide_prefill(
            PrefillInputs(
                uncached_tokens=uncached,
                queued=len(waiting),
                workers=len(job_client.peers.able()),
                min_tokens=settings.remote_prefill_min_tokens,
                queue_max=settings.prefill_queue_max,
                log_away=job_client.log_away,
                # looked at for long prompts only: it takes a digest for each request in the engine
                busy=uncached > settings.remote_prefill_min_tokens and self._unverified.shared(prompt, depth + 1),
            )
        )
        self.verdicts[report.reason] += 1
        return report

    async def _begin(
        self, request: GenerateRequest, report: PrefillReport, pull: KvPull | None = None
    ) -> StreamingAnswer:
        """The engine's first output; its errors are the engine's."""
        # by the engine's contract its iterator can be closed, as generators can
        rest = cast(AsyncGenerator[Output, None], self._engine.generate(request, pull))
        try:
            return StreamingAnswer(await anext(rest), rest, report)
        except BaseException:  # cancelled, too: an iterator that nobody closes keeps its request in the engine
            await rest.aclose()
            raise

    async def _try_remote(
        self, job: PrefillJob, prompt: Prompt, report: PrefillReport
    ) -> tuple[StreamingAnswer | None, PrefillReport]:
        """An answer from blocks that another computed; None if this engine must compute them, and the report of it."""
        report = msgspec.structs.replace(report, job=job.id)
        try:
            answer = await self.job_client.answer(job)
            begun = await self._pull(job, answer, prompt, report)
        except Recompute as error:
            waited = self._clock.monotonic_ms() - job.asked_ms
            self.job_client.cancel(job, error.reason, error.detail)
            _logger.warning("prefill here after all: %s", error, extra={"request_id": job.request.id})
            return None, msgspec.structs.replace(report, outcome=error.reason, detail=error.detail, wait_ms=waited)
        return begun, begun.report

    async def _pull(
        self, job: PrefillJob, answer: PrefillAnswer, prompt: Prompt, report: PrefillReport
    ) -> StreamingAnswer:
        pull = KvPull(answer.peer.address, answer.event.blocks)
        keep_ms = answer.event.keep_ms
        until_ms = job.claimed_ms + keep_ms - keep_ms // MARGIN_PARTS
        await self._slot(until_ms)
        depth, begun = self._overlap(prompt), None
        try:
            begun = await self._first(job, pull, report)
            if self._clock.monotonic_ms() > until_ms:
                raise Recompute("unconfirmed", "the blocks came after the time for which they were promised")  # noqa: TRY301
            await self.job_client.confirm(job, answer)
        except BaseException as error:  # a client that went away, too, may leave wrong blocks in the cache
            came = not isinstance(error.__cause__, TransferFailed) and depth < prompt.blocks
            await self._judge(self._judged(job, answer, prompt, depth if came else -1, until_ms, begun), job)
            raise
        return begun._replace(report=self._told(job, answer, prompt, begun))

    async def _judge(self, judged: Coroutine[None, None, None], job: PrefillJob) -> None:
        """Returns when that is done; it goes on, and the job stays open for it, if we are cancelled meanwhile."""
        task = asyncio.create_task(judged, name=f"judge {job.id}")
        self._judging[task] = job
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                del self._judging[task]
            else:
                task.add_done_callback(self._found_out)

    def _found_out(self, task: asyncio.Task[None]) -> None:
        """The job of a client that did not wait so long has its end."""
        self.job_client.cancel(self._judging.pop(task), "client_gone")

    async def _judged(
        self,
        job: PrefillJob,
        answer: PrefillAnswer,
        prompt: Prompt,
        depth: int,
        until_ms: int,
        begun: StreamingAnswer | None,
    ) -> None:
        """What came of a pull that was given up is known to be right, or gone. EngineDead if that is not to be had:
        then nobody builds on it, and the worker leaves."""
        with ExitStack() as doubt:
            if depth >= 0:
                doubt.enter_context(self._unverified.about(prompt, depth + 1))
            try:
                if begun is not None:
                    await begun.rest.aclose()
                if depth >= 0 and await self._came(prompt, depth):
                    await self._mistrust(job, answer, until_ms)
            except Exception as error:
                self._spoiled.append(doubt.pop_all())
                self._broken(f"blocks that may be wrong cannot be forgotten: {error}")
                raise EngineDead(f"blocks that may be wrong are in the cache: {error}") from error

    async def close(self) -> None:
        """Nothing is found out any more."""
        for task in self._judging:
            task.cancel()
        if self._judging:
            await asyncio.wait(list(self._judging))

    async def _came(self, prompt: Prompt, depth: int) -> bool:
        """Whether the first block that was to be fetched is in the cache, now that the engine has given the pull up."""
        await self._engine.settle()
        return self._holds(prompt.key(depth + 1))

    async def _first(self, job: PrefillJob, pull: KvPull, report: PrefillReport) -> StreamingAnswer:
        """What the engine says first when it was given the blocks."""
        self._entering += 1
        try:
            async with asyncio.timeout(PULL_TIMEOUT_S):
                return await self._begin(job.request, report, pull)
        except TimeoutError as error:
            raise Recompute("transfer_failed", f"no token within {PULL_TIMEOUT_S:g} s") from error
        except TransferFailed as error:
            raise Recompute("transfer_failed", str(error)) from error
        finally:
            self._entering -= 1

    async def _mistrust(self, job: PrefillJob, answer: PrefillAnswer, until_ms: int) -> None:
        """What came of a pull that was broken off may be in the cache: it stays only if it is known to be right."""
        if self._clock.monotonic_ms() <= until_ms:
            with suppress(Recompute):
                await self.job_client.confirm(job, answer)
                return
        _logger.warning("blocks came that may be wrong: the cache is forgotten", extra={"request_id": job.request.id})
        await self._transfer.forget()

    def _told(self, job: PrefillJob, answer: PrefillAnswer, prompt: Prompt, begun: StreamingAnswer) -> PrefillReport:
        """The job has its good end, and the report says so."""
        block_size = prompt.block_size
        cached = begun.first.cached_tokens or 0
        blocks = prompt.blocks_to_hold - cached // block_size
        report = msgspec.structs.replace(
            begun.report,
            worker=answer.peer.worker,
            outcome="pulled",
            pulled_tokens=prompt.tokens - max(cached, 0),
            wait_ms=job.answered_ms - job.asked_ms,
            pull_ms=self._clock.monotonic_ms() - job.answered_ms,
        )
        self.pulled_blocks += blocks
        self.job_client.pulled(job, answer, report, blocks, answer.peer.address.block_bytes)
        return report

    async def _slot(self, until_ms: int) -> None:
        """Returns when the engine can begin at once. Recompute if that is not in time."""
        while True:
            load, slots = self._engine.load(), self._engine.info.slots
            if not load.waiting and load.running + self._entering < slots:
                break
            if self._clock.monotonic_ms() >= until_ms:
                raise Recompute("no_slot", "no slot came free in the engine while the blocks were held")
            await asyncio.sleep(SLOT_LOOK_S)
        if self._clock.monotonic_ms() >= until_ms:
            raise Recompute("lease", "too little is left of the time that the blocks are held")
