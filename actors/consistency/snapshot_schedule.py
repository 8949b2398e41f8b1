"""SnapshotSchedule: one replica of all takes a snapshot as often as was asked for.

1. The replica with the claim is the writer. The claim goes with its owner's lease, so another replica takes over when
   the owner dies.
2. When a snapshot is due is read from the newest manifest, not from a clock of ours: a new writer does not begin at
   once.
3. The process that takes the snapshot runs beside the replica and folds from the log, so the fold that serves is
   neither stopped nor copied.
4. A snapshot with incomplete sources is no start: `on_incomplete` hears of it, and the writer takes another later.
5. The claim's revision is the fence. A registry that lost its data counts anew, and each fold version has a writer of
   its own, so a fence is at least what the newest manifest names: a writer is refused only if a later claim of its
   kind has written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import orjson

from core.clock import Clock
from core.errors import ContrailError, PeerError
from core.ids import ReplicaId
from core.snapshot_manifest import Manifest
from projections.digest import FOLD_VERSION
from streams.registry import Registry

CHECK_EVERY_S = 5.0
"""Between steps; half a lease, so that a dead writer is soon followed."""
READ_EVERY_MS = 60_000
"""Between looks at the newest manifest where nothing is due."""
TAKE_TIMEOUT_S = 900.0
"""A snapshot that takes longer is given up."""
RETRY_MIN_MS = 10_000
RETRY_MAX_MS = 600_000
"""After a snapshot that failed the writer waits, twice as long each time."""
AGAIN_MIN_MS = 30_000
"""After a snapshot with incomplete sources the next one is taken so much later, and twice as much each time."""
MIN_EVENTS = 10_000
"""A log with less history is folded from its start in no time."""
MANIFESTS_READ_MAX = 16
"""Manifests of other fold versions are passed over, up to so many."""
CLAIM = f"snapshots/writer-{FOLD_VERSION}"

_logger = logging.getLogger(__name__)


class SnapshotSchedule:
    """One replica's part in the schedule; `take(fence)` takes a snapshot, and ends when it is cancelled."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        me: Callable[[], ReplicaId],
        *,
        every_s: float,
        newest_first: Callable[[], AsyncGenerator[Manifest, None]],
        take: Callable[[int], Awaitable[None]],
        folded: Callable[[], int],
        on_incomplete: Callable[[Manifest, bool], None] = lambda _manifest, _writer: None,
    ) -> None:
        """`folded`: how many messages the replica's own fold rests on. `on_incomplete` is called once for each newest
        snapshot with incomplete sources, with True if this replica is the writer."""
        self.newest: Manifest | None = None
        """Of our fold version, by the last look."""
        self.taken = 0
        """By us, since the start."""
        self.failed = 0
        self.revision: int | None = None
        """Of our claim; None while another is the writer."""
        self._registry = registry
        self._clock = clock
        self._me = me
        self._every_ms = round(every_s * 1000)
        self._newest_first = newest_first
        self._take = take
        self._folded = folded
        self._on_incomplete = on_incomplete
        self._fence = 0
        """The newest manifest's, of any fold version."""
        self._read_ms: int | None = None
        self._retry_ms = RETRY_MIN_MS
        self._again_ms = AGAIN_MIN_MS
        self._not_before_ms: int | None = None

    def __repr__(self) -> str:
        newest = "none" if self.newest is None else self.newest.id
        return f"<SnapshotSchedule {'writing' if self.revision is not None else 'standing by'}, newest {newest}>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`; `age_s` by our wall clock and the writer's, -1 for none."""
        newest = self.newest
        return {
            "id": "" if newest is None else newest.id,
            "age_s": -1 if newest is None else max(0, self._age_ms(newest)) // 1000,
            "by": "" if newest is None else newest.by,
            "writer": self.revision is not None,
            "taken": self.taken,
            "failed": self.failed,
        }

    async def run(self) -> None:
        """Does what is due, for ever."""
        while True:
            try:
                await self.step()
            except Exception:  # after any defect the claim must be kept or given to another, and the next step tried
                _logger.exception("a step of the snapshot writer failed, trying again")
            await asyncio.sleep(CHECK_EVERY_S)

    async def step(self) -> None:
        """The writer is known; if this replica is it, a snapshot that is due was taken, or that failed."""
        try:
            await self._claim()
            await self._check()
        except PeerError as error:
            _logger.warning("no snapshot is taken while the registry or the log is away: %s", error)
            return
        if self.revision is not None and self._due():
            await self._try_to_take(max(self.revision, self._fence))

    async def stop(self) -> None:
        """Another may be the writer; to be called when `run` has ended. Bounded by the registry's own bound."""
        revision, self.revision = self.revision, None
        if revision is None:
            return
        try:
            await self._registry.unregister(CLAIM)
        except PeerError as error:
            _logger.warning("the registry is away, our claim goes with its lease: %s", error)

    async def _claim(self) -> None:
        before, self.revision = self.revision, None
        self.revision = await self._registry.claim(CLAIM, orjson.dumps({"id": self._me()}))
        if self.revision != before:
            _logger.info(
                "this replica is %s the snapshot writer", "now" if self.revision is not None else "not any more"
            )

    async def _check(self) -> None:
        """The newest manifest is known, as of a minute ago at most, and as of now where a snapshot seems to be due."""
        now = self._clock.monotonic_ms()
        fresh = self._read_ms is not None and now - self._read_ms < READ_EVERY_MS
        if fresh and not (self.revision is not None and self._due()):
            return
        self._read_ms, read, newest = now, 0, None
        async with aclosing(self._newest_first()) as manifests:
            async for manifest in manifests:
                read += 1
                self._fence = manifest.fence if read == 1 else self._fence
                if manifest.fold_version == FOLD_VERSION:
                    newest = manifest
                if newest is not None or read >= MANIFESTS_READ_MAX:
                    break
        before, self.newest = self.newest, newest
        if newest is None or not newest.why_no_start:
            self._again_ms = AGAIN_MIN_MS
        elif before is None or before.id != newest.id:
            _logger.warning("no replica starts from snapshot %s: %s", newest.id, newest.why_no_start)
            if before is not None and before.why_no_start:
                self._again_ms = min(2 * self._again_ms, self._every_ms)
            self._on_incomplete(newest, self.revision is not None)

    def _due(self) -> bool:
        if self._not_before_ms is not None and self._clock.monotonic_ms() < self._not_before_ms:
            return False
        if self.newest is None:
            return self._folded() >= MIN_EVENTS
        if self.newest.why_no_start and self._age_ms(self.newest) >= self._again_ms:
            return True
        # a manifest from the future was made by a clock that is wrong, or ours is: it must not stop us for good
        return not -self._every_ms <= self._age_ms(self.newest) < self._every_ms

    def _age_ms(self, manifest: Manifest) -> int:
        return self._clock.wall_ms() - manifest.made_ms

    async def _try_to_take(self, fence: int) -> None:
        try:
            async with asyncio.timeout(TAKE_TIMEOUT_S):
                await self._take(fence)
        except (ContrailError, OSError, TimeoutError) as error:
            self.failed += 1
            self._not_before_ms = self._clock.monotonic_ms() + self._retry_ms
            _logger.warning("no snapshot was taken, next try in %d s: %r", self._retry_ms // 1000, error)
            self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)
        else:
            self.taken += 1
            self._not_before_ms, self._retry_ms = None, RETRY_MIN_MS
