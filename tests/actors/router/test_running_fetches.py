"""Fetches of one replica: how many are under way, which sources are left alone, and what their workers get."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.router.request_scheduler import AttemptBroke, Send
from actors.router.running_fetches import FAILED_US, RunningFetches
from actors.transport.worker_connection import WorkerDisconnected
from core.events import BlocksStored, RequestRouted
from core.events.routing import PrefixFetch
from core.ids import RequestId, WorkerId
from core.kv_transfer import FetchAddress, FetchSource
from core.prompt import HASH_BYTES, Prompt, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.policy.prefix_fetch import FETCHES_MAX
from replay.simulate.simulated_log import KV, SimulatedSource
from tests.actors.router.scheduling import BLOCK_SIZE, MODEL, Scheduling
from tests.projections.facts import load, pool_joined, reads, worker_id

A, B = WorkerId(worker_id(0)), WorkerId(worker_id(1))
TOKENS = 3200
BLOCKS = TOKENS // BLOCK_SIZE - 1
"""Blocks of the prompt that an engine can reuse."""
PROMPTS = FETCHES_MAX + 4
"""Prompts that the source has; a prompt that is being fetched for one request is waited for by the next."""


def address(port: int, block_bytes: int = 1000) -> FetchAddress:
    return FetchAddress(host="10.0.0.1", port=port, kind="k", block_bytes=block_bytes, load_blocks=500, mb_per_s=1000)


def scheduling(pooled: int = 0, block_bytes: int = 1000) -> Scheduling:
    """Two workers that fetch; the first has the prompts in its host, and too many requests. The second one's disk has
    so many blocks of the first prompt."""
    it = Scheduling(RoutingSettings(policy="time", hold_max_ms=0, active_max=64), workers=0)
    source = Scheduling.join(it.log, 0, address(1, block_bytes))
    for first in range(PROMPTS):
        hashes = Prompt(tokens_to_bytes(range(first, first + TOKENS)), BLOCK_SIZE, 7).hashes()
        source.append([BlocksStored(hashes=hashes, tier="host")])
    Scheduling.join(it.log, 1, address(2), reads("5c0ffee0") if pooled else UNSET)
    if pooled:
        hashes = Prompt(tokens_to_bytes(range(TOKENS)), BLOCK_SIZE, 7).hashes()[: pooled * HASH_BYTES]
        joined = replace(pool_joined("5c0ffee0", B, model=MODEL), block_size=BLOCK_SIZE)
        SimulatedSource(it.log, KV, "b" * 16).append([joined, BlocksStored(hashes=hashes, tier="disk")])
    SimulatedSource(it.log, LOAD, A).append([load(waiting=300)])
    it.ticks(1_000_000)
    return it


def last_fetch(it: Scheduling) -> PrefixFetch:
    event = it.published(RequestRouted)[-1]
    assert isinstance(event, RequestRouted)
    assert isinstance(event.fetch, PrefixFetch)
    return event.fetch


def send(it: Scheduling, name: str, prompt: int = 0) -> Send:
    it.arrive(name, TOKENS, prompt)
    it.ticks()
    command = it.done(Send)[-1]
    assert isinstance(command, Send)
    assert command.request.id == name
    return command


def test_the_worker_is_sent_the_address_of_its_source() -> None:
    """With the number of blocks that the source should have; its tokens are those of the request."""
    it = scheduling()
    command = send(it, "one")
    assert command.worker == B
    assert command.payload.fetch == FetchSource(host="10.0.0.1", port=1, blocks=BLOCKS)
    assert command.payload.tokens == tokens_to_bytes(range(TOKENS))
    assert last_fetch(it).source == A
    assert last_fetch(it).tokens == BLOCKS * BLOCK_SIZE


@pytest.mark.parametrize(("block_bytes", "fetches"), [(1_000, True), (10_000_000, False)])
def test_blocks_that_lie_on_its_disk_are_fetched_if_that_is_cheaper(block_bytes: int, fetches: bool) -> None:
    """A request that fetches reads none of them from the disk; one that does not has what lies there."""
    it = scheduling(pooled := 150, block_bytes)
    command = send(it, "one")
    assert command.worker == B
    source = command.payload.fetch
    event = it.published(RequestRouted)[-1]
    assert isinstance(event, RequestRouted)
    if fetches:
        assert source is not None
        assert (source.own_blocks, source.blocks) == (0, BLOCKS)
        assert last_fetch(it).tokens == event.predicted_cached_tokens == BLOCKS * BLOCK_SIZE
    else:
        assert source is None
        assert event.predicted_cached_tokens == pooled * BLOCK_SIZE


def test_a_source_has_only_so_many_fetches_at_a_time() -> None:
    """They count until the first token, or until the attempt ends, and each decision records how many there were."""
    it = scheduling()
    sent = [send(it, f"r{number}", number) for number in range(FETCHES_MAX)]
    assert last_fetch(it).busy == {A: FETCHES_MAX - 1}
    assert send(it, "computes", FETCHES_MAX).payload.fetch is None
    assert last_fetch(it) == PrefixFetch({A: FETCHES_MAX})
    it.output(sent[0].request, 1, cached_tokens=BLOCKS * BLOCK_SIZE)
    assert send(it, "after a token", FETCHES_MAX + 1).payload.fetch is not None
    it.hang_up(sent[1].request)
    assert send(it, "after an end", FETCHES_MAX + 2).payload.fetch is not None


def test_a_source_of_which_less_than_half_came_is_left_alone_for_a_while() -> None:
    it = scheduling()
    it.output(send(it, "failed").request, 1, cached_tokens=0)
    assert it.scheduler.fetches.describe() == {"made": 1, "failed": 1, "under_way": 0}
    assert send(it, "computes", 1).payload.fetch is None
    assert last_fetch(it).busy == {A: FETCHES_MAX}
    it.ticks(FAILED_US)
    assert send(it, "again", 2).payload.fetch is not None


def test_more_than_half_is_no_failure() -> None:
    """Nor is an engine that does not say what it took from caches."""
    it = scheduling()
    half = BLOCKS * BLOCK_SIZE // 2
    it.output(send(it, "half").request, 1, cached_tokens=half + 1)
    it.output(send(it, "unknown", 1).request, 1)
    assert it.scheduler.fetches.failed == 0
    assert send(it, "again", 2).payload.fetch is not None


def test_a_lost_worker_ends_its_fetch_and_the_next_attempt_has_one_of_its_own() -> None:
    it = scheduling()
    command = send(it, "one")
    it.feed(AttemptBroke(command.request.id, 0, WorkerDisconnected("gone")))
    assert repr(it.scheduler.fetches).startswith("<RunningFetches 0 under way")
    it.ticks()
    assert last_fetch(it).busy == {}


def test_a_request_that_another_program_sends_fetches_nothing() -> None:
    """A proxy does not know the way to a source; the record says that nothing could be fetched."""
    it = scheduling()
    it.arrive("reserved", TOKENS, may_fetch=False)
    it.ticks()
    event = it.published(RequestRouted)[-1]
    assert isinstance(event, RequestRouted)
    assert not isinstance(event.fetch, PrefixFetch)


def test_sources_stand_by_their_ids() -> None:
    """So equal fetches have equal records."""
    fetches = RunningFetches()
    for request, source in (("x", B), ("y", A), ("z", B)):
        fetches.begin(RequestId(request), source)
    assert list(fetches.busy(0).items()) == [(A, 1), (B, 2)]
