"""Simulated engines that fetch starts of prompts from each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from actors.engines.simulated.engine_state import EngineState, Submit
from actors.engines.simulated.engine_step import step
from actors.engines.simulated.sequence import BlockHashPrompt
from core.events import RequestPrefilled, RequestRouted, WorkerJoined
from core.events.routing import PrefixFetch
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.kv_transfer import FetchAddress
from core.prompt import hashes_to_bytes
from core.subjects import ROUTING
from projections.policy.prefix_fetch import FETCH_TOKENS_MIN
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY, KV
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival
from replay.verify.verify import verify
from tests.replay.simulate.families import ENGINE
from tests.replay.simulate.said import said

FETCHING = dataclasses.replace(
    ENGINE, capacity_blocks=1500, host_blocks=8000, host_us_per_block=5, fetch_mb_per_s=4000, context_max=20_000
)
SIZE = FETCHING.block_size
PROMPT_BLOCKS = 4 * FETCH_TOKENS_MIN // SIZE
BURST = 16


def asked(name: str, blocks: int, fetchable: int) -> Submit:
    known = BlockHashPrompt(blocks * SIZE + 1, hashes_to_bytes(range(1, blocks + 1)))
    request = GenerateRequest(id=RequestId(name), tokens=b"", sampling=Sampling(max_tokens=2))
    return Submit(request, known=known, fetchable=fetchable)


def first_token(state: EngineState, submit: Submit) -> tuple[int, int | None]:
    """When it came, and the tokens that were cached."""
    began_us, done = state.now_us, step(state, state.now_us, [submit])
    while True:
        if done.outputs:
            at_us, cached = done.times_us[0] - began_us, done.outputs[0][1].cached_tokens
            while done.due_us is not None:
                done = step(state, done.due_us)
            return at_us, cached
        assert done.due_us is not None
        done = step(state, done.due_us)


def test_a_fetch_takes_its_time_and_the_rest_is_computed() -> None:
    """Then the blocks lie in the engine's own caches."""
    cold_us, nothing = first_token(EngineState(FETCHING), asked("cold", 100, 0))
    state = EngineState(FETCHING)
    part_us, cached = first_token(state, asked("part", 100, 60))
    assert (nothing, cached) == (0, 60 * SIZE)
    rest_us, _ = first_token(EngineState(FETCHING), asked("rest", 40, 0))
    moving_us = FETCHING.fetch_time_us(60) + 60 * FETCHING.host_us_per_block
    assert part_us == pytest.approx(rest_us + moving_us, rel=0.05)
    assert part_us < cold_us
    _, again = first_token(state, asked("again", 100, 0))
    assert again == 100 * SIZE


def test_a_second_request_waits_for_what_is_on_its_way() -> None:
    """As vLLM's host has it: neither is it fetched twice, nor computed. Later it is found as any other block."""
    state = EngineState(FETCHING)
    done = step(state, 0, [asked("first", 60, 60)])
    done = step(state, 1000, [asked("second", 60, 0)])
    times, cached = dict[str, int](), dict[str, int | None]()
    while done.due_us is not None:
        done = step(state, done.due_us)
        for (request, output), at_us in zip(done.outputs, done.times_us, strict=True):
            times.setdefault(request, at_us)
            cached.setdefault(request, output.cached_tokens)
    assert cached == {"first": 60 * SIZE, "second": 60 * SIZE}
    assert times["second"] >= FETCHING.fetch_time_us(60)
    assert first_token(state, asked("third", 60, 0))[0] < FETCHING.fetch_us


def test_what_is_here_is_not_fetched() -> None:
    """Nor more than the source has, or than the prompt may take from caches."""
    state = EngineState(FETCHING)
    first_token(state, asked("first", 50, 0))
    _, cached = first_token(state, asked("second", 50, 50))
    assert cached == 50 * SIZE
    own_us, _ = first_token(state, asked("third", 50, 30))
    assert own_us < FETCHING.fetch_us
    known = BlockHashPrompt(20 * SIZE, hashes_to_bytes(range(500, 520)))  # its last token is always computed
    exact = Submit(asked("fourth", 1, 0).request, known=known, fetchable=20)
    _, cached = first_token(state, exact)
    assert cached == 19 * SIZE


def arrivals(count: int) -> list[Arrival]:
    """Bursts of prompts that share a long start, so that the worker that has it is busy."""
    found = []
    for number in range(count):
        talk = number // BURST
        hashes = [1000 * talk + depth for depth in range(1, PROMPT_BLOCKS + 1)]
        hashes += [10**9 + 100 * number + depth for depth in range(PROMPT_BLOCKS // 2)]
        at_us = talk * 1_000_000 + (300_000 + number % BURST * 3000 if number % BURST else 0)
        found.append(Arrival(RequestId(f"r{number}"), at_us, len(hashes) * SIZE + 3, hashes_to_bytes(hashes), 20))
    return sorted(found, key=lambda each: each.at_us)


@pytest.mark.parametrize("failures", [0, 600])
def test_every_decision_with_fetches_follows_from_the_log(tmp_path: Path, failures: int) -> None:
    """With replicas that lag, and with workers that fail; each fetch that a live source could serve was met."""
    options = Options(workers=4, engine=FETCHING, replicas=2, lag_ms=20, failures_per_hour=failures)
    found = simulate(options, arrivals(240), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)
    events = [event for _, _, event in said(tmp_path / "log", ROUTING)]
    routed = [event for event in events if isinstance(event, RequestRouted)]
    came = {
        (event.request, event.attempt): event.cached_tokens for event in events if isinstance(event, RequestPrefilled)
    }
    assert proved.proof.holds
    assert (proved.verified, proved.different) == (len(routed), 0)
    assert all(isinstance(event.fetch, PrefixFetch) for event in routed)
    fetched = [event for event in routed if isinstance(event.fetch, PrefixFetch) and event.fetch.source]
    assert len(fetched) > 10
    if not failures:
        kept = [event for event in fetched if (event.request, event.attempt) in came]  # others were declined
        met = [came[event.request, event.attempt] == event.predicted_cached_tokens for event in kept]
        assert sum(met) > 0.9 * len(met)
    assert not any(each.why for each in found.served)


def test_fetches_make_first_tokens_earlier() -> None:
    """On this load, where prompts come in bursts; and without a speed nothing of it is in the log."""
    plain = dataclasses.replace(FETCHING, fetch_mb_per_s=0)
    with_, without = (simulate(Options(workers=4, engine=each), arrivals(240)) for each in (FETCHING, plain))
    assert sum(with_.computed_tokens) < sum(without.computed_tokens)
    waited_us = [sum(each.first_us - each.arrival_us for each in found.served) for found in (with_, without)]
    assert waited_us[0] < waited_us[1]


def test_workers_say_how_they_fetch(tmp_path: Path) -> None:
    simulate(Options(workers=2, engine=FETCHING), arrivals(8), archive=tmp_path / "log")
    addresses = [event.fetch for _, _, event in said(tmp_path / "log", KV) if isinstance(event, WorkerJoined)]
    assert len(addresses) == 2
    for each in addresses:
        assert isinstance(each, FetchAddress)
        assert (each.mb_per_s, each.load_blocks, each.block_bytes) == (4000, 4000, FETCHING.block_bytes)
