"""Simulate: arrivals of a trace through the real decisions and simulated engines, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from core.errors import CallerError
from core.ids import RequestId
from core.prompt import HASH_BYTES
from replay.simulating.arrival import Arrival
from replay.simulating.follows import Follows
from replay.simulating.options import Options
from replay.simulating.served import Served
from replay.simulating.verdict import Verdict
from replay.simulating.virtual_log import KEY, NAMESPACE, START_MS
from replay.simulating.world import World
from replay.verify.process_pool import collector_paused
from streams.archive.archive_writer import ArchiveWriter

PROGRAM = "contrail simulate"
"""As an archive names who made it."""


class Simulated(NamedTuple):
    """What came of a run."""

    served: list[Served]
    """In the order of the arrivals."""
    digest: str
    """Of every decision and every result: equal digests mean equal runs."""
    computed_tokens: tuple[int, ...]
    """By place in the fleet: prompt tokens that workers there computed, for requests that ended elsewhere or failed,
    too."""


def simulate(
    options: Options,
    arrivals: Iterable[Arrival],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    archive: Path | None = None,
    follows: Mapping[RequestId, Follows] = MappingProxyType({}),
    *,
    judged: Callable[[Verdict], None] = lambda _verdict: None,
) -> Simulated:
    """All arrivals served; `progress` hears how many have ended of how many. The run's log is in the file `archive`,
    if one is named. Requests in `follows` come after others, not at their own times. `judged` hears where prompts
    were computed, if there are prefill workers, in the order of first tokens. CallerError if arrivals are not what they
    should be, or the file cannot be written."""
    arrivals = list(arrivals)
    _check(arrivals, options.engine.block_size)
    _check_follows(arrivals, follows)
    writer = None if archive is None else ArchiveWriter(archive, NAMESPACE, KEY.chain_key, PROGRAM, START_MS)
    try:
        world = World(options, arrivals, progress, writer, follows, judged=judged)
        with collector_paused():
            digest = world.run()
        if writer is not None:
            writer.finish(writer.contents(START_MS, world.log.now_ms))
    except BaseException:  # whatever it was, half a log is of no use
        if writer is not None:
            writer.abandon()
        raise
    return Simulated([each for each in world.served if each is not None], digest, world.computed_tokens)


def _check_follows(arrivals: list[Arrival], follows: Mapping[RequestId, Follows]) -> None:
    before: set[RequestId] = set()
    for arrival in arrivals:
        if arrival.id in follows and (follows[arrival.id].request not in before or follows[arrival.id].pause_us < 0):
            raise CallerError(f"{arrival.id} is to follow {follows[arrival.id].request}, which must stand before it")
        before.add(arrival.id)


def _check(arrivals: list[Arrival], block_size: int) -> None:
    if len({arrival.id for arrival in arrivals}) < len(arrivals):
        raise CallerError("two requests of the trace have the same id: give each its own")
    for arrival in arrivals:
        blocks = arrival.prompt_tokens // block_size
        if len(arrival.hashes) != blocks * HASH_BYTES or arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
            raise CallerError(
                f"{arrival.id}: a prompt of {arrival.prompt_tokens} tokens with {len(arrival.hashes) // HASH_BYTES} "
                f"hashes, and an answer of {arrival.output_tokens}; give both a token at least, and each full block of "
                f"{block_size} tokens its hash"
            )
