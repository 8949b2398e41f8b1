"""AttachedEngine: a vLLM server that runs already as an engine. It is never started, changed or stopped from here.

1. One engine object follows one start of the server. It is dead when the server was started again, is away or hangs;
   the next start has a successor, and so a worker of another id with an empty cache.
2. Before it serves, a trial request shows that token ids go both ways and that cache events arrive. It costs one block
   of the server's cache, under a salt of its own.
3. Others may ask the server, too. Their blocks are in its events and their requests in its numbers; our own requests
   are counted here, between two readings of these numbers.
4. `settle` waits for events of steps that have ended. A server cannot be asked to wait for the step under way.
5. A request is aborted by hanging up.
6. Of a data-parallel server, one rank is the engine: its events, its numbers, and requests that name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING

from actors.engines.attached.completion_call import PATH, CompletionReader, completion_body, refusal
from actors.engines.attached.server_client import ServerAddress, ServerClient, ServerGone
from actors.engines.attached.server_facts import ServerFacts, ServerOptions, find_facts
from actors.engines.attached.server_metrics import ServerMetrics, read_metrics
from actors.engines.engine import (
    BlockTransfer,
    CacheChange,
    CacheGap,
    CacheStored,
    EngineInfo,
    EngineLoad,
    TransferFailed,
)
from actors.engines.engine_adapters import EngineAdapters
from actors.engines.kv_events.kv_endpoints import KvEndpoints
from actors.engines.kv_events.kv_event_reader import KvEventReader
from core.errors import CallerError, EngineDead, PeerError, Unavailable
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, new_id
from core.kv_transfer import KvPull
from core.prompt import tokens_to_bytes

METRICS_EVERY_S = 0.5
"""Between readings of the server's numbers: one is 55 KiB and 5 ms of the server's time."""
METRICS_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 10.0
"""Bound on an answer to GET /health; two together stay below the watchdog's bound."""
HEALTH_TRIES = 2
HEALTH_RETRY_S = 0.25
REREAD_EVERY_S = 5.0
"""Between replays of the newest cache events: by them events are found that were lost and have none behind them."""
REREAD_FAILURES_MAX = 3
"""Replays in a row without an answer; then the cache is unknown, and the engine is dead."""
SETTLE_TIMEOUT_S = 30.0
TRIAL_TOKEN = 1
TRIAL_TIMEOUT_S = 120.0
"""Bound on the answer to the trial request; a server's first one may compile kernels."""
TRIAL_EVENTS_S = 4.0
"""Bound on the time from that answer to its cache event …"""
TRIALS = 3
"""… and the number of trials: a subscription may not stand yet at the first one."""
RANK_HEADER = "X-data-parallel-rank"
"""By it a server gives a request to one of its ranks."""
HYBRID = "the server's model mixes several kinds of attention, of which prefixes cannot be told yet"

if TYPE_CHECKING:
    from actors.engines.kv_events.kv_event_feed import KvEventFeed

_logger = logging.getLogger(__name__)


class AttachedEngine:
    """One start of one server. `model` is the name that clients ask for."""

    info: EngineInfo
    transfer: BlockTransfer | None = None
    adapters: EngineAdapters | None = None

    def __init__(self, model: str, options: ServerOptions) -> None:
        self._model = model
        self._options = options
        self._client = ServerClient(ServerAddress.parse(options.url), options.key)
        self._facts: ServerFacts | None = None
        self._before: ServerFacts | None = None
        """The facts of the start before this one."""
        self._past_starts: frozenset[float] = frozenset()
        """Starts of the server before that one."""
        self._reader = KvEventReader()
        self._feed: KvEventFeed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._dead = ""
        """The reason for which this start of the server is over."""
        self._metrics: ServerMetrics | None = None
        self._own_then = 0
        """Our own requests at the last reading."""
        self._own = 0
        self._priorities = False
        self._trial_salt = ""
        self._trial: asyncio.Future[CacheStored] | None = None
        """The event of the trial under way."""

    def __repr__(self) -> str:
        return f"<AttachedEngine {self._client.address}, {self._own} requests{', dead' if self._dead else ''}>"

    def successor(self) -> AttachedEngine:
        """An engine for the server's next start."""
        after = AttachedEngine(self._model, self._options)
        after._before = self._facts or self._before
        after._past_starts = self._past_starts
        if self._before is not None and self._facts is not None and self._facts.started_s != self._before.started_s:
            after._past_starts |= {self._before.started_s}
        return after

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The server takes our requests and its cache is followed from its first event on, as far as it still has them.

        CallerError if it cannot be attached, Unavailable if it is away now; nothing is left of it then.
        """
        facts = await find_facts(self._client, self._options)
        self._check_succession(facts)
        self._facts = facts
        self.info = EngineInfo(
            engine=f"vllm {facts.version}, attached",
            model=self._model,
            model_path=facts.tokenizer,
            block_size=facts.block_size,
            capacity_blocks=facts.capacity_blocks,
            context_max=facts.context_max,
            slots=self._options.slots,
            group=str(self._client.address) if facts.ranks > 1 else "",
            server=str(self._client.address),
            rank=self._options.rank if facts.ranks > 1 else None,
        )

        def on_change(change: CacheChange) -> None:
            self._watch(change)
            on_cache(change)

        self._feed = _feed(
            self._reader.batch_reader(on_change), lambda detail: on_change(CacheGap(detail)), facts.endpoints
        )
        try:
            self._feed.start()
            await self._feed.reread()
            await self._try_out(facts)
            await self._read_metrics()
        except BaseException:  # a cancelled start, too, leaves nothing behind
            await self.stop()
            raise
        self._tasks = [self._spawn(self._follow_metrics()), self._spawn(self._follow_events(self._feed))]

    def _check_succession(self, facts: ServerFacts) -> None:
        if facts.started_s in self._past_starts:
            raise CallerError(f"{self._client.address} balances over several servers: attach each by its own address")
        if self._before is not None and facts.root != self._before.root:
            raise CallerError(
                f"{self._client.address} now serves {facts.root} instead of {self._before.root}: start the attached "
                "worker again, under the name that clients ask for"
            )

    def _watch(self, change: CacheChange) -> None:
        """Changes that concern the engine itself are noted."""
        if self._reader.groups > 1:
            self._dead = self._dead or HYBRID
        if self._trial is None or self._trial.done() or not isinstance(change, CacheStored):
            return
        if set(change.tokens) != {TRIAL_TOKEN}:
            return
        if change.cache_salt == self._trial_salt or not change.indexable:
            self._trial.set_result(change)

    async def _try_out(self, facts: ServerFacts) -> None:
        """One block and a token were computed, and the block's event arrived."""
        for _ in range(TRIALS):
            stored = await self._try_once(facts)
            if stored is not None:
                break
        else:
            raise CallerError(
                f"{self._client.address} answers, but no cache event of it arrived at {facts.endpoints.events} within "
                f"{TRIAL_EVENTS_S:g} s: open that port to this machine, and attach each server by its own address"
            )
        if self._reader.groups > 1 or not stored.indexable:
            raise CallerError(f"{self._client.address} cannot be attached: {HYBRID}")
        if stored.block_size != facts.block_size:
            raise CallerError(
                f"{self._client.address} says that its blocks have {facts.block_size} tokens, and its cache events say "
                f"{stored.block_size}: these sizes must be equal"
            )

    async def _try_once(self, facts: ServerFacts) -> CacheStored | None:
        """The event of a trial; None if it did not arrive."""
        self._trial_salt = new_id()
        self._trial = asyncio.get_running_loop().create_future()
        asked = GenerateRequest(
            id=RequestId(f"contrail-trial-{self._trial_salt}"),
            tokens=tokens_to_bytes([TRIAL_TOKEN] * (facts.block_size + 1)),
            sampling=Sampling(max_tokens=1, temperature=0.0),
            cache_salt=self._trial_salt,
            priority=1,
        )
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                self._priorities = True
                try:
                    await self._take_all(asked)
                except CallerError as error:
                    if "priority" not in str(error):
                        raise
                    self._priorities = False
                    await self._take_all(asked)
        except TimeoutError as error:
            raise Unavailable(f"{self._client.address} does not answer within {TRIAL_TIMEOUT_S:g} s") from error
        except (Unavailable, EngineDead):
            raise  # away now
        except (CallerError, PeerError) as error:
            raise CallerError(f"{self._client.address} does not complete token ids: {error}") from error
        try:
            async with asyncio.timeout(TRIAL_EVENTS_S):
                return await self._trial
        except TimeoutError:
            return None

    async def _take_all(self, request: GenerateRequest) -> None:
        async for _ in self.generate(request):
            pass

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        """New tokens as they come, the last Output with `finish`; closing the iterator hangs up.

        How much of the prompt the cache had comes with the last Output, or never: only the server knows.
        """
        if pull is not None:
            raise TransferFailed("an attached server fetches no blocks")
        if self._dead or self._facts is None:
            raise EngineDead(self._dead or "the server is not attached")
        facts = self._facts
        body = completion_body(request, facts.model, facts.context_max, priorities=self._priorities)
        headers = {"traceparent": request.traceparent} if request.traceparent else {}
        if facts.ranks > 1:
            headers[RANK_HEADER] = str(self._options.rank)
        reader = CompletionReader(request.sampling)
        self._own += 1
        try:
            async with self._client.request("POST", PATH, body, headers) as answer:
                if answer.status != 200:
                    raise refusal(answer.status, await answer.body())
                async with aclosing(answer.events()) as events:
                    async for event in events:
                        output = reader.read(event)
                        if output is not None:
                            yield output
        except ServerGone as error:
            if reader.last is None:
                raise EngineDead(f"the server broke off: {error}") from error
        finally:
            self._own -= 1
        if reader.last is None:
            raise PeerError("the server ended an answer without a reason")
        yield reader.last

    def load(self) -> EngineLoad:
        """The server's numbers of the last reading, with our own requests as of now.

        Others' requests are those that the server had beside ours. Its waiting requests are counted first.
        """
        if self._metrics is None:
            return EngineLoad(running=0, waiting=0, blocks_used=0, blocks_total=0)
        total = self.info.capacity_blocks
        others = max(0, self._metrics.running + self._metrics.waiting - self._own_then)
        requests = others + self._own
        waiting = min(self._metrics.waiting, requests)
        return EngineLoad(
            running=requests - waiting,
            waiting=waiting,
            blocks_used=round(self._metrics.cache_share * total) if requests else 0,
            blocks_total=total,
            steps=self._metrics.steps,
        )

    async def check(self) -> None:
        """Returns if this start of the server lives and its events are followed, else raises EngineDead."""
        if self._dead:
            raise EngineDead(self._dead)
        if self._feed is None:
            raise EngineDead("the server is not attached")
        self._feed.check()
        for task in self._tasks:
            if task.done():
                raise EngineDead("the server is not watched any more") from task.exception()
        for left in reversed(range(HEALTH_TRIES)):
            try:
                reply = await self._client.get("/health", HEALTH_TIMEOUT_S)
            except PeerError as error:
                if not left:
                    raise EngineDead(f"the server is gone: {error}") from error
                await asyncio.sleep(HEALTH_RETRY_S)
            else:
                if reply.status != 200:
                    raise EngineDead(f"the server's engine is dead: GET /health gives {reply.status}")
                return

    async def settle(self) -> None:
        """Every cache change of steps that had ended before the call has been told. Unavailable if that takes long."""
        if self._feed is None:
            raise EngineDead("the server is not attached")
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._feed.catch_up()
        except TimeoutError as error:
            raise Unavailable(f"the server did not settle within {SETTLE_TIMEOUT_S:.0f} s") from error

    async def stop(self) -> None:
        """Requests under way have failed with EngineDead, and the server goes on without us; again: nothing to do."""
        self._dead = self._dead or "the server is not attached any more"
        self._client.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.stop()

    async def _follow_metrics(self) -> None:
        """The numbers are at most METRICS_EVERY_S old while the server answers, and its start is this one."""
        while not self._dead:
            await asyncio.sleep(METRICS_EVERY_S)
            try:
                await self._read_metrics()
            except PeerError as error:
                _logger.debug("the server's numbers cannot be read: %s", error)  # `check` finds out if it is gone

    async def _read_metrics(self) -> None:
        reply = await self._client.get("/metrics", METRICS_TIMEOUT_S)
        metrics = read_metrics(reply.body, self._options.rank or 0)
        assert self._facts is not None
        if metrics.started_s != self._facts.started_s:
            self._dead = self._dead or "the server was started again"
            return
        self._metrics, self._own_then = metrics, self._own

    async def _follow_events(self, feed: KvEventFeed) -> None:
        """Cache events that were lost are found within REREAD_EVERY_S."""
        failures = 0
        while not self._dead:
            await asyncio.sleep(REREAD_EVERY_S)
            try:
                await feed.reread()
                failures = 0
            except EngineDead as error:
                self._dead = self._dead or str(error)
            except PeerError as error:
                failures += 1
                if failures >= REREAD_FAILURES_MAX:
                    self._dead = self._dead or f"the server's cache events cannot be read any more: {error}"

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(coroutine, name=f"attached {self._client.address}")


def _feed(on_batch: Callable[[bytes], float], on_gap: Callable[[str], None], endpoints: KvEndpoints) -> KvEventFeed:
    """A feed of the server's cache events, not started; CallerError if ZeroMQ is not installed."""
    try:
        from actors.engines.kv_events.kv_event_feed import KvEventFeed  # noqa: PLC0415  (needs ZeroMQ)
    except ModuleNotFoundError as error:
        raise CallerError(
            f"cache events of a server come over ZeroMQ ({error.name} is missing): install Contrail with the extra "
            "`attach`, `pip install -e '.[attach]'`"
        ) from error
    return KvEventFeed(on_batch, on_gap, endpoints)
