"""DigestExchangeShell: drives a replica's DigestExchange in its event loop, and executes its commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from actors.consistency.digest_exchange import (
    ClaimAnswered,
    DigestCommand,
    DigestEvent,
    DigestExchange,
    FoldRebuilt,
    PublishDigests,
    RebuildFold,
    ReleaseClaim,
    ReplaceFold,
    ResolutionFailed,
    TakeClaim,
)
from core.clock import Clock
from core.errors import ContrailError, PeerError
from core.events import Event
from core.ids import ReplicaId
from core.machine import TICK, Tick
from projections.folds.state import State
from streams.machine_shell import MachineShell
from streams.registry import Registry

REBUILD_TIMEOUT_S = 900.0
"""A fold that takes longer is given up: the log is away or too slow."""
CLAIM = "divergence"
"""The replica that has this claim folds the log anew."""

_logger = logging.getLogger(__name__)


class DigestExchangeShell:
    """Publishes at once; `run` executes all other commands, one after the other."""

    def __init__(
        self,
        state: State,
        publish: Callable[[Event], None],
        me: Callable[[], ReplicaId],
        clock: Clock,
        registry: Registry,
        *,
        rebuild: Callable[[], Awaitable[State]],
        replace: Callable[[str], Awaitable[object]],
    ) -> None:
        """`rebuild` folds the log anew beside the state that serves; `replace` does so and takes the state's place,
        after which FoldReplaced is to be fed."""
        self._publish = publish
        self._me = me
        self._clock = clock
        self._registry = registry
        self._rebuild = rebuild
        self._replace = replace
        self._machine = DigestExchange(state, clock.monotonic_us())
        self._shell = MachineShell[DigestEvent, DigestCommand](self._machine, clock, self._execute)
        self._commands = asyncio.Queue[DigestCommand]()
        self._may_have_claim = False
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<DigestExchangeShell of {self._machine!r}, {self._commands.qsize()} commands wait>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        return self._machine.describe(self._clock.monotonic_ms())

    def feed(self, event: DigestEvent | Tick) -> None:
        """The machine has stepped."""
        if not self._is_stopped:
            self._shell.feed(event)

    async def run(self) -> None:
        """Executes commands, for ever."""
        self.feed(TICK)
        while True:
            command = await self._commands.get()
            try:
                answer = await self._perform(command)
            except Exception as error:  # after any defect the claim must be released
                is_defect = not isinstance(error, ContrailError | TimeoutError)
                _logger.warning("%r failed, trying again: %r", command, error, exc_info=is_defect)
                answer = ResolutionFailed()
            if answer is not None:
                self.feed(answer)

    async def stop(self) -> None:
        """Another replica may have the claim. To be called when `run` has ended; bounded by the registry's bound."""
        self._is_stopped = True
        self._shell.close()
        await self._release_claim()

    def _execute(self, command: DigestCommand) -> None:
        if isinstance(command, PublishDigests):
            self._publish(command.event)
        else:
            self._commands.put_nowait(command)

    async def _perform(self, command: DigestCommand) -> DigestEvent | None:
        match command:
            case TakeClaim():
                return await self._take_claim()
            case RebuildFold():
                async with asyncio.timeout(REBUILD_TIMEOUT_S):
                    return FoldRebuilt(await self._rebuild())
            case ReplaceFold(reason):
                # without a bound: while the log is away, the wrong fold serves, and no report of it is published
                await self._replace(reason)
            case ReleaseClaim():
                await self._release_claim()
        return None

    async def _take_claim(self) -> DigestEvent:
        self._may_have_claim = True
        try:
            revision = await self._registry.claim(CLAIM, orjson.dumps({"id": self._me()}))
        except PeerError as error:
            _logger.warning("the registry is away, a mismatch between replicas waits for it: %s", error)
            return ClaimAnswered(None)
        self._may_have_claim = revision is not None
        return ClaimAnswered(self._may_have_claim)

    async def _release_claim(self) -> None:
        if not self._may_have_claim:
            return
        self._may_have_claim = False
        try:
            await self._registry.unregister(CLAIM)
        except PeerError as error:
            _logger.warning("the registry is away, our claim goes when it is back: %s", error)
