"""Clocks that are off: replicas and broker ahead, behind, drifting and stepping, in virtual time.

Four replicas with the default policy and eight simulated workers get the same requests in each row. Every decision of
its log is verified. With clocks off by at most a second, hit rate and time to the first token must be those of right
clocks within KEPT_WITHIN. `--uncorrected` lets replicas decide by their own clocks, as versions before did.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import xxhash

from actors.engines.simulated.simulated_settings import SimulatedSettings
from bench.figures import Figure, main
from core.codec import decode_message
from core.events import RequestRouted
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import report
from replay.simulate.simulated_clock import NO_ERROR, ClockError
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival
from replay.verify.verify import verify

REPLICAS, WORKERS = 4, 8
REQUESTS, REQUESTS_QUICK = 2000, 500
PER_S = 14
"""About seven tenths of what the workers can compute."""
GROUPS, TALKS = 12, 160
SYSTEM_BLOCKS, TURN_BLOCKS, TURNS_MAX = 24, 14, 6
"""Blocks of a group's system prompt, and of a turn; turns of a talk."""
KEPT_WITHIN = 0.02
"""Bound of the change of hit rate and time to the first token against right clocks, up to STRICT_MS."""
STRICT_MS = 1000
ENGINE = SimulatedSettings(capacity_blocks=4096, context_max=8192, eos_every=0, prefill_us_per_token=400)
OFFSETS_MS = (100, 1000, 60_000, 3_600_000)
STEP_AT_US = 10_000_000
LAG_MS = 5


class SkewRow(NamedTuple):
    """Clocks of one run."""

    what: str
    clocks: tuple[ClockError, ...] = (NO_ERROR,) * REPLICAS
    broker: ClockError = NO_ERROR

    @property
    def is_strict(self) -> bool:
        """True if no clock is off by more than STRICT_MS."""
        errors = (*self.clocks, self.broker)
        return all(abs(each.offset_ms) + abs(each.step_ms) <= STRICT_MS for each in errors)


class SkewResult(NamedTuple):
    """Results of one run."""

    hit_rate: float
    ttft_ms: float
    """The mean."""
    seen_ms: tuple[float, ...]
    """Expected waits that the decisions of each replica saw on all their candidates together, the mean."""
    decisions: int
    verified: int


def rows() -> Iterator[SkewRow]:
    """All rows, right clocks first."""
    yield SkewRow("right clocks")
    for ms in OFFSETS_MS:
        for sign in (1, -1):
            error = ClockError(offset_ms=sign * ms)
            yield SkewRow(f"one replica {_text(sign * ms)}", (error, *(NO_ERROR,) * (REPLICAS - 1)))
        apart = (ClockError(ms), ClockError(-ms), NO_ERROR, ClockError(ms // 2))
        yield SkewRow(f"replicas apart by up to {2 * ms / 1000:g} s", apart)
        yield SkewRow(f"broker {_text(ms)}", broker=ClockError(ms))
    drifts = (ClockError(drift_ppm=200), ClockError(drift_ppm=-200), NO_ERROR, ClockError(drift_ppm=100))
    yield SkewRow("replicas drift by 200 millionths", drifts)
    yield SkewRow("broker drifts by 200 millionths", broker=ClockError(drift_ppm=200))
    for ms in OFFSETS_MS:
        step = ClockError(step_ms=-ms, step_at_us=STEP_AT_US)
        yield SkewRow(f"one replica steps {_text(-ms)}", (step, *(NO_ERROR,) * (REPLICAS - 1)))
        yield SkewRow(f"broker steps {_text(-ms)}", broker=step)


def run(row: SkewRow, requests: int, *, corrected: bool = True) -> SkewResult:
    """The row's run, every decision verified."""
    options = Options(
        workers=WORKERS, replicas=REPLICAS, engine=ENGINE, lag_ms=LAG_MS, seed=1,
        clocks=row.clocks, broker_clock=row.broker, clocks_corrected=corrected,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "log"
        found = simulate(options, arrivals(requests), archive=archive)
        figures = report(found.served, WORKERS)
        with Recording.open(archive, KEY) as recording:
            checked = verify(recording)
            seen_ms = tuple(seen_waits_ms(recording))
    return SkewResult(figures.hit_rate, figures.ttft_ms.mean, seen_ms, checked.decisions, checked.verified)


def seen_waits_ms(recording: Recording) -> Iterator[float]:
    """The waits that each replica saw, in the order in which the replicas joined."""
    waits: dict[str, list[int]] = {}
    for record in recording.archive.read(ROUTING):
        message = decode_message(record.payload)
        seen = waits.setdefault(message.source, [])
        seen += (sum(each.columns["wait_us"]) for each in message.events if isinstance(each, RequestRouted))
    for seen in waits.values():
        yield sum(seen) / max(1, len(seen)) / 1000


def arrivals(count: int) -> list[Arrival]:
    """Turns of talks in groups with common system prompts, at random times of a Poisson process; always the same."""
    chance = random.Random(1)
    turns: dict[int, int] = {}
    found, at_s = [], 0.0
    for number in range(count):
        at_s += chance.expovariate(PER_S)
        place = chance.randrange(TALKS)
        turn = turns[place] = turns.get(place, 0) + 1
        talk, length = f"{place}/{turn // TURNS_MAX}", 1 + turn % TURNS_MAX
        names = [f"group {place % GROUPS}/{block}" for block in range(SYSTEM_BLOCKS)]
        names += [f"talk {talk}/{block}" for block in range(length * TURN_BLOCKS)]
        hashes = hashes_to_bytes(xxhash.xxh3_64_intdigest(name.encode()) for name in names)
        tokens = len(names) * ENGINE.block_size + number % ENGINE.block_size
        found.append(Arrival(RequestId(f"request-{number}"), round(at_s * 1e6), tokens, hashes, 20 + number % 30))
    return found


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Per row: hit rate and mean time to the first token."""
    requests, right = (REQUESTS_QUICK if options.quick else REQUESTS), None
    for row in rows():
        found = run(row, requests, corrected=not options.uncorrected)
        right = right or found
        yield from figures(row, found, right)


def figures(row: SkewRow, found: SkewResult, right: SkewResult) -> Iterator[Figure]:
    """The row beside right clocks; a figure does not hold if it is too far from theirs, or decisions differ."""
    all_verified = found.verified == found.decisions
    note = f"{found.verified} of {found.decisions} decisions verified"
    kept = not row.is_strict or abs(found.hit_rate / right.hit_rate - 1) <= KEPT_WITHIN
    yield Figure(f"{row.what}: hit rate", 100 * found.hit_rate, "%", None, False, note, kept and all_verified)
    change = found.ttft_ms / right.ttft_ms - 1
    kept = not row.is_strict or change <= KEPT_WITHIN
    yield Figure(f"{row.what}: first token", found.ttft_ms, "ms", note=f"{100 * change:+.1f} %", holds=kept)
    others = sum(found.seen_ms[1:]) / (REPLICAS - 1)
    yield Figure(
        f"{row.what}: waits seen by that replica", 100 * found.seen_ms[0] / others, "% of others'", None, False
    )


def _text(ms: int) -> str:
    return f"{abs(ms) / 1000:g} s {'ahead' if ms > 0 else 'behind'}"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--uncorrected", action="store_true", help="replicas decide by their own clocks")


if __name__ == "__main__":
    main("skew", measure, _options)
