"""MismatchResolution: finds the wrong fold by folding the log anew, one replica at a time and not too often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson

from actors.consistency.digest_mismatch import DigestMismatch
from core.clock import Clock
from core.errors import ContrailError, PeerError, Unavailable
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq
from projections.digest import MASK64
from projections.folds.state import State
from streams.registry import Registry


class RebuildComparison(NamedTuple):
    """One stream's fold at a cursor that both folds have passed."""

    stream: StreamName
    epoch: Epoch
    seq: StreamSeq
    served: int
    """What the fold that serves had there."""
    refolded: int
    """What the log gives there."""

    @property
    def wrong(self) -> bool:
        return self.served != self.refolded


def drift(state: State, stream: StreamName) -> int:
    """What the fold differs by from what it says of itself; 0 unless the index was changed behind its back. O(parts).

    A message accounts for its own source only: what is wrong with another would be seen with that one's next message.
    """
    if stream not in state.kv:
        return 0
    kv = state.kv[stream]
    return (kv.recount() - kv.digest) & MASK64


def compare_folds(state: State, refolded: State) -> dict[StreamName, RebuildComparison]:
    """Every stream that can be compared: known to both in one epoch, complete, and not further apart than the points
    that a state keeps. O(parts).
    """
    found = (_compare_stream(state, refolded, stream) for stream in sorted(state.cursor))
    return {finding.stream: finding for finding in found if finding is not None}


def _compare_stream(state: State, refolded: State, stream: StreamName) -> RebuildComparison | None:
    if stream not in refolded.cursor:
        return None
    seq = min(state.cursor[stream].seq, refolded.cursor[stream].seq)
    ours, log = state.point(stream, seq), refolded.point(stream, seq)
    if ours is None or log is None or not (ours.complete and log.complete) or ours.epoch != log.epoch:
        return None
    # digests are sums: what the parts have beside what was accounted for them counts at every cursor
    served = (ours.digest + drift(state, stream)) & MASK64
    return RebuildComparison(stream, ours.epoch, seq, served, log.digest)


REFOLD_EVERY_MS = 3_600_000
"""A fold of everything costs a core for seconds: a replica that errs again and again must not do little else."""
REFOLD_TIMEOUT_S = 900.0
"""A fold that takes longer is given up: the log is away or too slow."""
RETRY_MS = 60_000
"""Between tries that did not come to an end."""
CLAIM = "divergence"
"""Whoever has it folds anew."""
CLAIM_WAIT_MS = 60_000
"""A registry that is away for longer than this keeps nobody from settling."""

_logger = logging.getLogger(__name__)


class MismatchResolution:
    """Resolves one mismatch at a time; calls `on_replaced` or `on_confirmed` with its outcome."""

    def __init__(
        self,
        state: State,
        me: Callable[[], ReplicaId],
        clock: Clock,
        registry: Registry,
        *,
        refold: Callable[[], Awaitable[State]],
        rebuild: Callable[[str], Awaitable[object]],
        on_replaced: Callable[[DigestMismatch, RebuildComparison], None],
        on_confirmed: Callable[[DigestMismatch, RebuildComparison], None],
    ) -> None:
        self.replacing = False
        """While true the fold that serves is known to be wrong, and may be another at any moment."""
        self._state = state
        self._me = me
        self._clock = clock
        self._registry = registry
        self._refold = refold
        self._rebuild = rebuild
        self._on_replaced = on_replaced
        self._on_confirmed = on_confirmed
        self._not_before_ms: int | None = None
        self._held_back = False
        """Whether it was said that a dispute has to wait for that."""
        self._claimed = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<MismatchResolution {'folding anew' if self.busy else 'claimed' if self._claimed else 'idle'}>"

    @property
    def busy(self) -> bool:
        """Whether the log is being folded anew."""
        return self._task is not None and not self._task.done()

    async def step(self, mismatch: DigestMismatch | None) -> None:
        """What is due for the dispute that is ours to settle now, if any.

        It is settled one step after it was claimed: what another found just before it let go of the claim has been
        heard by then.
        """
        assert not self.busy
        now = self._clock.monotonic_ms()
        if mismatch is None:
            await self._give_up_claim()
        elif self._not_before_ms is not None and now < self._not_before_ms:
            self._hold_back(mismatch)
        elif self._claimed:
            self._task = asyncio.create_task(self._resolve(mismatch), name=f"settling {mismatch.stream}")
            self._task.add_done_callback(_report_failure)
        else:
            await self._claim(now - mismatch.opened_ms)

    async def settled(self) -> None:
        """What is being folded anew, if anything, has come to an end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Nothing is folded anew any more, and another may; bounded by the registry's own bound."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._give_up_claim()

    def _hold_back(self, mismatch: DigestMismatch) -> None:
        if not self._held_back:
            self._held_back = True
            _logger.error("not settled so soon again, the fold that is doubted serves meanwhile: %s", mismatch)

    async def _claim(self, waited_ms: int) -> None:
        try:
            self._claimed = await self._registry.claim(CLAIM, orjson.dumps({"id": self._me()})) is not None
        except PeerError as error:
            self._claimed = waited_ms >= CLAIM_WAIT_MS
            _logger.warning("the registry is away, a dispute between replicas waits for it: %s", error)

    async def _give_up_claim(self) -> None:
        if not self._claimed:
            return
        self._claimed = False
        try:
            await self._registry.unregister(CLAIM)
        except PeerError as error:
            _logger.warning("the registry is away, our claim goes when it is back: %s", error)

    async def _resolve(self, mismatch: DigestMismatch) -> None:
        self._held_back = False
        self._not_before_ms = self._clock.monotonic_ms() + RETRY_MS
        try:
            await self._fold_anew(mismatch)
        except (ContrailError, TimeoutError) as error:
            _logger.warning("the dispute over %s cannot be settled now, trying again: %r", mismatch.stream, error)
        else:
            self._not_before_ms = self._clock.monotonic_ms() + REFOLD_EVERY_MS
        finally:
            self.replacing = False
            await self._give_up_claim()

    async def _fold_anew(self, mismatch: DigestMismatch) -> None:
        _logger.warning("folding the log anew: %s", mismatch)
        async with asyncio.timeout(REFOLD_TIMEOUT_S):
            refolded = await self._refold()
        findings = compare_folds(self._state, refolded)
        disputed = findings.get(mismatch.stream)
        if disputed is None:
            raise Unavailable(f"{mismatch.stream} is not complete, or moved on too fast to be compared")
        # our own index was changed behind our back: that is so even if a message has come to account for it since
        known = disputed if mismatch.own else None
        wrong = next((finding for finding in (disputed, *findings.values()) if finding.wrong), known)
        if wrong is None:
            self._on_confirmed(mismatch, disputed)
            return
        self.replacing = True
        # without a bound: while the log is away, the fold that is wrong serves, and nothing is said of it
        await self._rebuild(f"wrong at {wrong.stream}:{wrong.seq}")
        self._on_replaced(mismatch, wrong)


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.error("folding the log anew failed", exc_info=task.exception())
