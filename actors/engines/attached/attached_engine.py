"""AttachedEngine: a server that runs already as an engine. It is never started, changed or stopped from here.

1. One engine object follows one start of the server. It is dead when the server was started again, is away or hangs;
   the next start has a successor, and so a worker of another id with an empty cache.
2. Before it serves, a trial request shows that token ids go both ways and that cache events arrive. It costs one block
   of the server's cache, under a salt of its own.
3. Others may ask the server, too. Their blocks are in its events and their requests in its numbers; our own requests
   are counted here, between two readings of these numbers.
4. `settle` waits for events of steps that have ended. A server cannot be asked to wait for the step under way.
5. A request is aborted by hanging up, and by a call where the profile has one.
6. Of a data-parallel server, one rank is the engine: its events, its numbers, and requests that name it.
7. What differs between kinds of servers is in their profiles (`server_profile`).
8. The cache of a server without events is assumed (`assumed_cache`), if that is asked for; its facts say so.
9. Adapters are loaded to the server before it serves here, again at each of its starts (`server_adapters`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from actors.engines.attached.assumed_cache import AssumedCache
from actors.engines.attached.call_checks import refusal
from actors.engines.attached.profile_choice import choose_profile
from actors.engines.attached.server_adapters import ServerAdapters, home_of
from actors.engines.attached.server_discovery import several_servers
from actors.engines.attached.server_profile import (
    ServerCall,
    ServerFacts,
    ServerNumbers,
    ServerOptions,
    ServerProfile,
)
from actors.engines.engine import (
    BlockTransfer,
    CacheChange,
    CacheGap,
    CacheStored,
    EngineInfo,
    EngineLoad,
    TransferFailed,
)
from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.engines.kv_events.kv_batch import KvBatchReader, batch_handler
from actors.engines.kv_events.kv_endpoints import KvEndpoints, PolledEvents
from actors.engines.kv_events.polled_event_feed import PolledEventFeed
from actors.transport.server_client import ServerAddress, ServerClient, ServerGone, ServerStream
from core.errors import CallerError, EngineDead, PeerError, Unavailable
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, new_id
from core.kv_transfer import KvPull
from core.prompt import tokens_to_bytes

METRICS_EVERY_S = 0.5
"""Between readings of the server's numbers: one is 55 KiB and 5 ms of the server's time."""
HEALTH_TIMEOUT_S = 10.0
"""Bound on an answer that shows that the server lives; two together stay below the watchdog's bound."""
HEALTH_TRIES = 2
HEALTH_RETRY_S = 0.25
REREAD_EVERY_S = 5.0
"""Between replays of the newest cache events: by them events are found that were lost and have none behind them."""
REREAD_FAILURES_MAX = 3
"""Replays in a row without an answer; then the cache is unknown, and the engine is dead."""
SETTLE_TIMEOUT_S = 30.0
TRIAL_TOKENS_MAX = 32
"""A trial has tokens of lower ids, which every vocabulary has …"""
TRIAL_TIMEOUT_S = 120.0
"""… and its answer has this bound; a server's first one may compile kernels."""
TRIAL_EVENTS_S = 4.0
"""Bound on the time from that answer to its cache event …"""
TRIALS = 3
"""… and the number of trials: a subscription may not stand yet at the first one."""
POLL_TIMEOUT_S = 10.0
"""Bound on an answer with polled cache events."""
ABORTS_MAX = 64
"""Calls at once that abort requests."""
ABORT_TIMEOUT_S = 2.0
"""Bound on each: a server sees a hang-up that late at most."""
UNTOLD = (
    "prefixes cannot be told yet of a model that mixes several kinds of attention, nor where speculative decoding keys "
    "the cache by pairs of tokens"
)
SALTS_MIX = (
    "the server does not show that it keeps prompts of different cache_salt apart: leave cache_salt out, or attach a "
    "server whose cache events have it"
)

NO_ADAPTERS = "a server of this kind serves no adapters here"

if TYPE_CHECKING:
    from actors.engines.kv_events.kv_event_feed import KvEventFeed

_logger = logging.getLogger(__name__)


class EventFeed(Protocol):
    """Follows the cache events of one start of a server."""

    def start(self) -> None:
        """Events are passed on as they come."""

    async def reread(self) -> None:
        """Events that were lost without another behind them have been taken. EngineDead if the server was started
        again; another PeerError if it does not answer."""

    async def catch_up(self) -> None:
        """Events of steps that had ended before the call have been taken, or told as a gap."""

    def check(self) -> None:
        """Raises EngineDead if events are not followed any more."""

    async def stop(self) -> None:
        """Nothing is read any more."""


class AttachedEngine:
    """One start of one server. `model` is the name that clients ask for, `adapters` maps names of adapters (LoRA) to
    their folders: all are served once it is up."""

    info: EngineInfo
    transfer: BlockTransfer | None = None

    def __init__(self, model: str, options: ServerOptions, adapters: Mapping[str, str] | None = None) -> None:
        self._model = model
        self._options = options
        self._adapter_paths = dict(adapters or {})
        """Those of the start; behind the end those that were served then."""
        self.adapters: EngineAdapters | None = None
        self._server_adapters: ServerAdapters | None = None
        """Both None of a server that serves none."""
        self._adapters_loaded = False
        self._client = ServerClient(ServerAddress.parse(options.url), options.key)
        self._facts: ServerFacts | None = None
        self._before: ServerFacts | None = None
        """The facts of the start before this one."""
        self._past_starts: frozenset[str] = frozenset()
        """Starts of the server before that one."""
        self._profile: ServerProfile | None = None
        """Known once the server was asked for its kind."""
        self._keeps_salts_apart = False
        self._reader: KvBatchReader | None = None
        self._assumed: AssumedCache | None = None
        """In place of cache events, if the server has none."""
        self._on_cache: Callable[[CacheChange], None] | None = None
        self._feed: EventFeed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._aborts: set[asyncio.Task[None]] = set()
        """Calls under way that abort requests."""
        self._dead = ""
        """The reason for which this start of the server is over."""
        self._numbers: ServerNumbers | None = None
        """None of a server that tells none."""
        self._own_then = 0
        """Our own requests at the last reading."""
        self._own = 0
        self._priorities = False
        self._trial_tokens: tuple[int, ...] = ()
        """Of the block of the trial under way."""
        self._trial: asyncio.Future[CacheStored] | None = None
        """The event of that block."""

    def __repr__(self) -> str:
        return f"<AttachedEngine {self._client.address}, {self._own} requests{', dead' if self._dead else ''}>"

    def successor(self) -> AttachedEngine:
        """An engine for the server's next start."""
        after = AttachedEngine(self._model, self._options, self._adapter_paths)
        after._before = self._facts or self._before
        after._past_starts = self._past_starts
        if self._before is not None and self._facts is not None and self._facts.start != self._before.start:
            after._past_starts |= {self._before.start}
        return after

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The server takes our requests and its cache is followed from its first event on, as far as it still has them.

        CallerError if it cannot be attached, Unavailable if it is away now; nothing is left of it then.
        """
        profile = self._profile = await choose_profile(self._client, self._options.engine)
        facts = await profile.find_facts(self._client, self._options)
        self._check_succession(facts)
        self._facts = facts
        assumed = facts.endpoints is None
        self.info = EngineInfo(
            engine=f"{facts.engine}, attached",
            model=self._model,
            model_path=facts.tokenizer,
            block_size=facts.block_size,
            capacity_blocks=facts.capacity_blocks,
            context_max=facts.context_max,
            slots=self._options.slots,
            group=str(self._client.address) if facts.ranks > 1 else "",
            server=str(self._client.address),
            rank=self._options.rank if facts.ranks > 1 else None,
            assumed=assumed,
        )
        self._keeps_salts_apart = profile.keeps_salts_apart is not False  # in the trial, which has a salt then
        self._on_cache = on_cache
        try:
            if facts.endpoints is None:
                await self._try_once(profile, facts)
                self._assumed = AssumedCache(facts.block_size, facts.capacity_blocks)
                self._keeps_salts_apart = bool(profile.keeps_salts_apart)
            else:
                self._feed = self._make_feed(profile, facts, facts.endpoints)
                self._feed.start()
                await self._feed.reread()
                await self._try_out(profile, facts, facts.endpoints)
            await self._read_numbers(profile, facts)
            await self._load_adapters(profile, facts)
        except BaseException:  # a cancelled start, too, leaves nothing behind
            await self.stop()
            raise
        self._tasks = [self._spawn(self._follow_numbers(profile, facts))] if self._numbers is not None else []
        if self._feed is not None:
            self._tasks.append(self._spawn(self._follow_events(self._feed)))

    async def _load_adapters(self, profile: ServerProfile, facts: ServerFacts) -> None:
        """Those of the start are served. CallerError if this server serves none, or refuses one."""
        refused = NO_ADAPTERS if not profile.serves_adapters else ""
        if facts.ranks > 1:
            refused = "a server with several data-parallel ranks serves no adapters here"
        if refused:
            if self._adapter_paths:
                raise CallerError(f"{refused}: leave them out for {self._client.address}")
            return
        # a client of its own: it is asked when all requests have been hung up
        server = self._server_adapters = ServerAdapters(ServerClient(self._client.address, self._options.key))
        home = home_of(self._client.address, self._options.adapter_folder)
        self.adapters = EngineAdapters(server.attach, server.detach, home)
        for name, path in self._adapter_paths.items():
            await self.adapters.load(name, path)
        self._adapters_loaded = True

    def _make_feed(
        self, profile: ServerProfile, facts: ServerFacts, endpoints: KvEndpoints | PolledEvents
    ) -> EventFeed:
        def on_change(change: CacheChange) -> None:
            self._watch(change)
            self._report(change)

        def on_gap(detail: str) -> None:
            reader.forget()
            on_change(CacheGap(detail))

        reader = self._reader = profile.batch_reader(facts)
        on_batch = batch_handler(reader, on_change)
        if isinstance(endpoints, KvEndpoints):
            return _feed(on_batch, on_gap, endpoints)
        return PolledEventFeed(lambda: self._poll(endpoints), on_batch, on_gap)

    async def _poll(self, endpoints: PolledEvents) -> bytes:
        """The events since the last call; PeerError if there is no answer."""
        reply = await self._client.post(endpoints.events, b"", POLL_TIMEOUT_S)
        if reply.status != 200:
            raise PeerError(f"POST {endpoints.events} gives status {reply.status}")
        return reply.body

    def _report(self, change: CacheChange) -> None:
        assert self._on_cache is not None
        self._on_cache(change)

    def _check_succession(self, facts: ServerFacts) -> None:
        if facts.start in self._past_starts:
            raise several_servers(self._client)
        if self._before is not None and facts.root != self._before.root:
            raise CallerError(
                f"{self._client.address} now serves {facts.root} instead of {self._before.root}: start the attached "
                "worker again, under the name that clients ask for"
            )

    def _watch(self, change: CacheChange) -> None:
        """Changes that concern the engine itself are noted."""
        if self._groups > 1:
            self._dead = self._dead or f"the server was followed no longer: {UNTOLD}"
        if self._trial is None or self._trial.done() or not isinstance(change, CacheStored):
            return
        if change.tokens == self._trial_tokens:
            self._trial.set_result(change)

    @property
    def _groups(self) -> int:
        """Groups of layers that stored blocks so far."""
        return 0 if self._reader is None else self._reader.groups

    async def _try_out(self, profile: ServerProfile, facts: ServerFacts, endpoints: KvEndpoints | PolledEvents) -> None:
        """One block and a token were computed, and the block's event arrived."""
        for _ in range(TRIALS):
            salt = await self._try_once(profile, facts)
            stored = await self._trial_event()
            if stored is not None:
                break
        else:
            raise CallerError(
                f"{self._client.address} answers, but no cache event of it arrived at {endpoints.events} within "
                f"{TRIAL_EVENTS_S:g} s: {_hint(endpoints, facts)}, and attach each server by its own address"
            )
        if self._groups > 1 or not stored.indexable:
            raise CallerError(f"{self._client.address} cannot be attached: {UNTOLD}")
        if stored.block_size != facts.block_size:
            raise CallerError(
                f"{self._client.address} says that its blocks have {facts.block_size} tokens, and its cache events say "
                f"{stored.block_size}: these sizes must be equal"
            )
        self._keeps_salts_apart = stored.cache_salt == salt

    async def _try_once(self, profile: ServerProfile, facts: ServerFacts) -> str:
        """The server computed a trial, whose salt is returned; `_trial` becomes the event of its block."""
        salt = new_id()
        tokens = trial_tokens(salt, facts.block_size)
        self._trial_tokens = tokens[:-1]
        self._trial = asyncio.get_running_loop().create_future()
        asked = GenerateRequest(
            id=RequestId(f"contrail-trial-{salt}"),
            tokens=tokens_to_bytes(tokens),
            sampling=Sampling(max_tokens=1, temperature=0.0),
            cache_salt=salt if profile.keeps_salts_apart is not False else None,
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
        return salt

    async def _trial_event(self) -> CacheStored | None:
        """The event of the trial under way; None if it did not arrive."""
        assert self._trial is not None
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

        How much of the prompt the cache had comes with the first Output or the last one, or never: only the server
        knows.
        """
        if pull is not None:
            raise TransferFailed("an attached server fetches no blocks")
        profile, call = self._call(request)
        headers = {"traceparent": request.traceparent} if request.traceparent else {}
        reader = profile.answer_reader(request.sampling)
        made: list[int] = []
        self._own += 1
        try:
            with self._adapter_of(request) as adapter:
                async with self._asked(call, headers, adapter) as answer:
                    if answer.status != 200:
                        raise refusal(answer.status, await answer.body())
                    async with aclosing(answer.events()) as events:
                        async for event in events:
                            output = reader.read(event)
                            if output is not None:
                                self._assume(request, made, output)
                                yield output
        except ServerGone as error:
            if reader.last is None:
                raise EngineDead(f"the server broke off: {error}") from error
        except (GeneratorExit, asyncio.CancelledError):
            self._abort(profile.abort(request.id))
            raise
        finally:
            self._own -= 1
        if reader.last is None:
            raise PeerError("the server ended an answer without a reason")
        self._assume(request, made, reader.last)
        yield reader.last

    def _adapter_of(self, request: GenerateRequest) -> AbstractContextManager[AdapterCopy | None]:
        if not request.adapter:
            return nullcontext()
        if self.adapters is None:
            raise CallerError(f"{NO_ADAPTERS}: {request.adapter} is none of its models")
        return self.adapters.using(request.adapter)

    @asynccontextmanager
    async def _asked(
        self, call: ServerCall, headers: Mapping[str, str], adapter: AdapterCopy | None
    ) -> AsyncIterator[ServerStream]:
        """The server's answer. An adapter that others unloaded there is loaded again, once."""
        sent = {**headers, **call.headers}
        if adapter is not None and self._server_adapters is not None:
            async with self._client.request("POST", call.path, call.body, sent) as answer:
                if answer.status != 404:
                    yield answer
                    return
            await self._server_adapters.attach(adapter)
        async with self._client.request("POST", call.path, call.body, sent) as answer:
            yield answer

    def _call(self, request: GenerateRequest) -> tuple[ServerProfile, ServerCall]:
        """The request for the server. EngineDead if this start is over, CallerError if the server cannot do it."""
        profile, facts = self._profile, self._facts
        if self._dead or facts is None or profile is None:
            raise EngineDead(self._dead or "the server is not attached")
        if request.cache_salt and not self._keeps_salts_apart:
            raise CallerError(SALTS_MIX)
        return profile, profile.call(request, facts, self._options.rank or 0, priorities=self._priorities)

    def _abort(self, call: ServerCall | None) -> None:
        """The server is told to abort a request, beside the hang-up that it would see later. Of more than ABORTS_MAX at
        once the rest are aborted by their hang-ups alone."""
        if call is None or self._dead or len(self._aborts) >= ABORTS_MAX:
            return
        task = self._spawn(self._send_abort(call))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, call: ServerCall) -> None:
        try:
            await self._client.post(call.path, call.body, ABORT_TIMEOUT_S)
        except PeerError as error:
            _logger.debug("a request was not aborted at once: %s", error)  # its hang-up aborts it

    def _assume(self, request: GenerateRequest, made: list[int], output: Output) -> None:
        """The prompt is taken to be cached from its first token on, its answer from the last one on."""
        if self._assumed is None:
            return
        if not made:
            self._add(request.tokens, request)
        made += output.tokens
        if output.finish is not None and made:
            self._add(request.tokens + tokens_to_bytes(made[:-1]), request)

    def _add(self, tokens: bytes, request: GenerateRequest) -> None:
        assert self._assumed is not None
        for change in self._assumed.add(tokens, request.cache_salt, request.adapter):
            self._report(change)

    def load(self) -> EngineLoad:
        """The server's numbers of the last reading, with our own requests as of now.

        Others' requests are those that the server had beside ours. Its waiting requests are counted first. Of a server
        that tells no numbers, our own requests are all.
        """
        total = self.info.capacity_blocks
        if self._numbers is None:
            running = min(self._own, self.info.slots)
            return EngineLoad(running=running, waiting=self._own - running, blocks_used=0, blocks_total=total)
        others = max(0, self._numbers.running + self._numbers.waiting - self._own_then)
        requests = others + self._own
        waiting = min(self._numbers.waiting, requests)
        return EngineLoad(
            running=requests - waiting,
            waiting=waiting,
            blocks_used=round(self._numbers.cache_share * total) if requests else 0,
            blocks_total=total,
            steps=self._numbers.steps,
        )

    async def check(self) -> None:
        """Returns if this start of the server lives and its events are followed, else raises EngineDead."""
        path = self._check_followed().health_path
        for left in reversed(range(HEALTH_TRIES)):
            try:
                reply = await self._client.get(path, HEALTH_TIMEOUT_S)
            except PeerError as error:
                if not left:
                    raise EngineDead(f"the server is gone: {error}") from error
                await asyncio.sleep(HEALTH_RETRY_S)
            else:
                if reply.status != 200:
                    raise EngineDead(f"the server's engine is dead: GET {path} gives {reply.status}")
                return

    def _check_followed(self) -> ServerProfile:
        """The profile; EngineDead if this start of the server is over, as far as is known without asking."""
        if self._dead:
            raise EngineDead(self._dead)
        if self._profile is None or self._facts is None:
            raise EngineDead("the server is not attached")
        if self._feed is not None:
            self._feed.check()
        for task in self._tasks:
            if task.done():
                raise EngineDead("the server is not watched any more") from task.exception()
        return self._profile

    async def settle(self) -> None:
        """Every cache change of steps that had ended before the call has been told. Unavailable if that takes long.
        Changes of an assumed cache are told at once."""
        if self._assumed is not None:
            return
        if self._feed is None:
            raise EngineDead("the server is not attached")
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._feed.catch_up()
        except TimeoutError as error:
            raise Unavailable(f"the server did not settle within {SETTLE_TIMEOUT_S:.0f} s") from error

    async def stop(self) -> None:
        """Requests under way have failed with EngineDead, and the server goes on without us and without our adapters;
        again: nothing to do."""
        lives = not self._dead
        self._dead = self._dead or "the server is not attached any more"
        self._client.hang_up()
        tasks = [*self._tasks, *self._aborts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.stop()
        if self.adapters is not None:
            adapters, self.adapters = self.adapters, None
            if self._adapters_loaded:
                self._adapter_paths = adapters.sources()
            if lives:
                await adapters.detach_all()
            adapters.close()

    async def _follow_numbers(self, profile: ServerProfile, facts: ServerFacts) -> None:
        """The numbers are at most METRICS_EVERY_S old while the server answers, and its start is this one."""
        while not self._dead:
            await asyncio.sleep(METRICS_EVERY_S)
            try:
                await self._read_numbers(profile, facts)
            except PeerError as error:
                _logger.debug("the server's numbers cannot be read: %s", error)  # `check` finds out if it is gone

    async def _read_numbers(self, profile: ServerProfile, facts: ServerFacts) -> None:
        numbers = await profile.read_numbers(self._client, self._options.rank or 0)
        if numbers is not None and numbers.start not in {None, facts.start}:
            self._dead = self._dead or "the server was started again"
            return
        self._numbers, self._own_then = numbers, self._own

    async def _follow_events(self, feed: EventFeed) -> None:
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


def trial_tokens(salt: str, block_size: int) -> tuple[int, ...]:
    """The prompt of a trial, one token longer than a block; other salts have others, as some servers ignore salts."""
    return tuple(ord(salt[-1 - at % len(salt)]) % TRIAL_TOKENS_MAX for at in range(block_size + 1))


def _hint(endpoints: KvEndpoints | PolledEvents, facts: ServerFacts) -> str:
    """The likely remedy if no event of a trial arrives."""
    if isinstance(endpoints, KvEndpoints):
        return "open that port to this machine"
    return (
        f"see that it keeps events (event_buffer_max_size), that nothing else reads them, and that its blocks have "
        f"{facts.block_size} tokens (--block-size)"
    )


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
