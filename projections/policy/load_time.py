"""Load times: how long a block takes from a slower tier of a worker to its device, and the price of that.

Workers measure it and report it (`core.events.LoadReported.load_times`), each the mean of its last loads. A replica
takes the median of a model's workers for each tier. So it is an input of the decision, which stands in its record.

A tier from which a block comes later than it would be computed is not counted: what lies there, and behind it, is
computed, and the worker is told to load nothing from there. Where talks fill the workers, computing delays others and
loading does not. So the time of computing counts more there. A tier without a learned time keeps the credit that the
settings give it. While the time of computing is unknown, no tier is slow.

Only the policy `time` reads load times. Integers throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from core.ids import WorkerId
from core.settings import TIERS, RoutingSettings
from projections.policy.delay_price import OWN_DELAYS, REUSE_FULL, delay_price_m
from projections.policy.prefill_time import MILLI, PrefillTime

if TYPE_CHECKING:
    from projections.policy.view import View

POLICY = "time"
"""The policy that reads load times."""
LEARN_EVERY_US = 250_000
"""Reports are looked at this often at most: a look takes all workers."""
COMPUTING_DELAYS = OWN_DELAYS + 1
"""The time of computing counts so many times more among talks: as a delay of the request itself, and of one request
beside it."""
MODELS_MAX = 256
"""Models whose times a replica keeps; beyond them the first one is looked for again."""


class LoadTime(NamedTuple):
    """Expected time of a block from each slower tier to the device, in thousandths of a microsecond; 0 where it is
    unknown. Beside them, how full of talks the workers are: then computing delays others."""

    host_m: int
    disk_m: int
    remote_m: int
    reuse_max: int = 0
    """The greatest reuse of the model's workers, REUSE_FULL at most."""

    @property
    def tiers_m(self) -> tuple[int, int, int]:
        """The times alone."""
        return self.host_m, self.disk_m, self.remote_m


class LoadPrices(NamedTuple):
    """Cached blocks of each tier, in the order of TIERS, as a decision with load times counts them."""

    credits_m: tuple[int, ...]
    """Credit of a block against the blocks to compute, in thousandths."""
    times_m: tuple[int, ...]
    """Time of its load, in thousandths of a microsecond; 0 on the device, and where the time is unknown."""
    slow: tuple[bool, ...]
    """True of a tier from which a block comes later than it would be computed, with the delays of others by that."""

    @staticmethod
    def of(
        settings: RoutingSettings, learned: LoadTime | None, computing: PrefillTime | None, block_size: int
    ) -> LoadPrices | None:
        """`computing` is the learned time of prefills; while it is unknown, no tier is slow, unless the settings have
        that time. None where no load time counts: none is learned, or the policy reads none."""
        if learned is None or settings.policy != POLICY:
            return None
        is_known = computing is not None or settings.prefill_us_per_token_m
        computed_m = PrefillTime.of(settings, computing).per_token_m * block_size if is_known else 0
        computed_m += COMPUTING_DELAYS * delay_price_m(settings, learned.reuse_max) * computed_m // MILLI
        times_m = (0, *learned.tiers_m)
        slow = tuple([time_m >= computed_m > 0 if time_m else False for time_m in times_m])
        pairs = zip(times_m, settings.credits_m, strict=True)
        return LoadPrices(
            tuple([MILLI if time_m else credit_m for time_m, credit_m in pairs]),
            tuple([0 if late else time_m for time_m, late in zip(times_m, slow, strict=True)]),
            slow,
        )

    @property
    def slow_tiers(self) -> tuple[str, ...]:
        """Tiers from which nothing is to be loaded."""
        return tuple([tier for tier, late in zip(TIERS, self.slow, strict=True) if late])

    def counted(self, overlap: tuple[int, ...]) -> tuple[int, ...]:
        """The levels without blocks of a slow tier, and without those behind these."""
        for level in range(1, len(overlap)):
            before = overlap[level - 1]
            if self.slow[level] and overlap[level] > before:
                return overlap[:level] + (before,) * (len(overlap) - level)
        return overlap

    @property
    def counts_all(self) -> bool:
        """True if no tier is slow."""
        return not any(self.slow)

    def all_counted(self, cached: Mapping[WorkerId, tuple[int, ...]]) -> Mapping[WorkerId, tuple[int, ...]]:
        """`counted` of each worker. O(workers that hold blocks), and nothing without a slow tier."""
        if self.counts_all:
            return cached
        return {worker: self.counted(overlap) for worker, overlap in cached.items()}

    def load_us(self, overlap: tuple[int, ...]) -> int:
        """Time to load the blocks of these levels."""
        time_m = before = 0
        for depth, each_m in zip(overlap, self.times_m, strict=True):
            time_m += (depth - before) * each_m
            before = depth
        return time_m // MILLI


class LoadTimeModel:
    """The load times of each model, by what its workers report, of MODELS_MAX models and block sizes at most."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], tuple[int, LoadTime | None]] = {}
        """By model and block size: when reports were looked at, and the times then."""

    def __repr__(self) -> str:
        return f"<LoadTimeModel { ({kind: time for kind, (_, time) in self._found.items()}) }>"

    def time(self, view: View, model: str, block_size: int, now_us: int) -> LoadTime | None:
        """The times by reports of at most LEARN_EVERY_US ago; None if no worker has any."""
        kind = model, block_size
        known = self._found.get(kind)
        if known is not None and 0 <= now_us - known[0] < LEARN_EVERY_US:
            return known[1]
        found = learned_times(view, model, block_size)
        if known is not None and found == known[1]:
            found = known[1]  # the same object: requests that are held keep their input
        self._found[kind] = now_us, found
        if len(self._found) > MODELS_MAX:
            del self._found[next(iter(self._found))]
        return found


def learned_times(view: View, model: str, block_size: int) -> LoadTime | None:
    """The median of what the model's workers with this block size report, tier by tier, and their greatest reuse; None
    if none reports any time. A worker without recent reports has no say. O(workers)."""
    reports, reuse, stale = view.state.loads.reports, view.state.loads.reuse, view.local.get("stale", ())
    columns: list[tuple[int, ...]] = []
    reuse_max = 0
    for member in view.state.serving():
        joined, report = member.joined, reports.get(member.worker)
        if joined is None or joined.model != model or joined.block_size != block_size or member.worker in stale:
            continue
        reuse_max = max(reuse_max, reuse.get(member.worker, 0))
        if report is not None and report.load_times is not UNSET:
            columns.append(report.load_times)
    if not columns:
        return None
    host_m, disk_m, remote_m = (_median(each for each in column if each > 0) for column in zip(*columns, strict=True))
    return LoadTime(host_m, disk_m, remote_m, min(reuse_max, REUSE_FULL)) if host_m or disk_m or remote_m else None


def _median(times_m: Iterable[int]) -> int:
    """The lower one of two in the middle; 0 of none."""
    ordered = sorted(times_m)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0
