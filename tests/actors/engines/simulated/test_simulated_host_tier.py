"""The simulated engine's host tier: what leaves the cache is loaded from it, in a time for each block."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from actors.engines.engine import CacheChange, CacheCopied, CacheEmptied, CacheRemoved
from actors.engines.simulated.engine_state import Abort, Forget
from actors.engines.simulated.engine_step import load_of
from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.engines.simulated.simulated_host_tier import HostTier
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.kv_cache.cache_mirror import LEVELS, CacheMirror
from core.errors import CallerError
from core.generation import GenerateRequest
from core.prompt import Prompt, tokens_from_bytes
from tests.actors.engines.simulated.test_engine_step import SMALL, Run, request
from tests.actors.engines.simulated.test_simulated_engine import FAST
from tests.contracts.engine import EngineContract, Started

HOST = 40
TIERED = dataclasses.replace(SMALL, host_blocks=HOST, host_us_per_block=7)
DOCUMENTS = [[50 * number + place for place in range(40)] for number in range(8)]
"""Ten blocks each; the cache holds 16, the host 40."""


class TestSimulatedEngineWithHostTier(EngineContract):
    """The contract."""

    @pytest.fixture
    async def started(self) -> AsyncIterator[Started]:
        changes: list[CacheChange] = []
        engine = SimulatedEngine("sim", dataclasses.replace(FAST, capacity_blocks=130, host_blocks=400))
        await engine.start(changes.append)
        yield Started(engine, changes)
        await engine.stop()


def test_the_tail_of_what_was_used_least_goes_first() -> None:
    tier = HostTier(5)
    assert tier.keep([1, 2, 3], [10, 20, 30]) == [CacheCopied((1, 2, 3), "host")]
    tier.use([1, 2, 3])
    assert tier.keep([4, 5, 1], [40, 50, 11]) == [CacheCopied((4, 5), "host")]
    tier.use([4, 5])
    assert tier.keep([6, 7], [60, 70]) == [CacheCopied((6, 7), "host"), CacheRemoved((3, 2), "host")]
    assert tier.find([1, 2, 3]) == [11]
    assert tier.find([4, 5, 6, 9]) == [40, 50, 60]
    assert (len(tier), repr(tier)) == (5, "<HostTier 5 of 5 blocks>")
    assert tier.keep([], []) == []
    tier.clear()
    assert tier.find([1]) == []


def test_what_left_the_cache_is_loaded_with_the_same_text() -> None:
    """And its first token comes after the load, and what is computed of the prompt: the last block."""
    run, plain = Run(TIERED), Run()
    texts = [run.ask(request(f"cold {number}", document)) for number, document in enumerate(DOCUMENTS[:4])]
    assert texts == [plain.ask(request(f"cold {number}", document)) for number, document in enumerate(DOCUMENTS[:4])]
    asked_us = run.now_us
    assert run.ask(request("again", DOCUMENTS[0])) == texts[0]
    assert (run.cached["again"], plain.ask(request("again", DOCUMENTS[0]))) == (36, texts[0])
    assert run.first_us["again"] - asked_us == 9 * TIERED.host_us_per_block + 4 * 10
    assert plain.cached["again"] == 0


def test_others_go_on_while_blocks_are_loaded() -> None:
    """A request that decodes has a token in each of its steps; a prompt that came later is computed meanwhile."""
    slow = dataclasses.replace(TIERED, host_us_per_block=100)
    run = Run(slow)
    for number in range(3):
        run.ask(request(f"cold {number}", DOCUMENTS[number]))
    run.submit(request("decodes", [900] * 4, 12))
    run.now_us += 40
    run.submit(request("loads", DOCUMENTS[0], 2), request("later", [901] * 4, 1))
    begun_us = run.now_us
    assert load_of(run.state).running == 3
    run.to_end()
    assert run.cached["loads"] == 36
    assert run.first_us["later"] - begun_us <= 2 * 140 < 9 * 100 <= run.first_us["loads"] - begun_us
    times = [at for at, result in run.log for name, _ in result.outputs if name == "decodes"]
    assert max(after - before for before, after in pairwise(times)) <= 140


@pytest.mark.parametrize("seed", range(4))
def test_a_mirror_predicts_what_is_reused(seed: int) -> None:
    """In both tiers, one request after the other, at any length, and after bursts that evict from both."""
    dice, run, mirror, applied = random.Random(seed), Run(TIERED), CacheMirror(TIERED.block_size, 7), 0
    loaded = 0

    def cut(name: str) -> GenerateRequest:
        document = dice.choice(DOCUMENTS)
        return request(name, document[: dice.randrange(4, len(document))], dice.randrange(1, 9))

    for number in range(60):
        run.submit(*(cut(f"burst {number} {place}") for place in range(dice.randrange(4))))
        run.to_end()
        for change in run.changes[applied:]:
            mirror.apply(change)
        applied = len(run.changes)
        asked = cut(f"one {number}")
        prompt, device = Prompt(asked.tokens, TIERED.block_size, 7), set(mirror.held("device"))
        anywhere = device | set(mirror.held("host"))
        depths = [depth for depth in range(1, prompt.blocks_reusable + 1) if prompt.key(depth) in anywhere]
        assert depths == list(range(1, len(depths) + 1))
        loaded += bool(depths) and prompt.key(len(depths)) not in device
        text = run.ask(asked)
        assert run.cached[asked.id] == len(depths) * TIERED.block_size
        assert text == Run().ask(request("cold", list(tokens_from_bytes(asked.tokens)), asked.sampling.max_tokens))
        copies = sum(block.holds(LEVELS["host"]) for block in mirror._blocks.values())
        assert copies <= HOST
    assert loaded > 5
    assert (mirror.strangers, mirror.orphans, mirror.blocks_unindexed) == (0, 0, 0)
    assert load_of(run.state).blocks_used == 0


def test_a_load_that_is_given_up() -> None:
    """Its blocks are free, and what it would have loaded stays in the host."""
    run = Run(dataclasses.replace(TIERED, host_us_per_block=100))
    for number in range(3):
        run.ask(request(f"cold {number}", DOCUMENTS[number]))
    run.submit(request("loads", DOCUMENTS[0]))
    run.now_us += 200
    run.step(Abort(request("loads", DOCUMENTS[0]).id))
    assert load_of(run.state).blocks_used == 0
    run.to_end()
    run.ask(request("again", DOCUMENTS[0]))
    assert run.cached["again"] == 36


def test_nothing_is_found_after_forget() -> None:
    """Neither what lies in the host, nor what is on its way from there: that request goes on with it alone."""
    run = Run(dataclasses.replace(TIERED, host_us_per_block=100))
    texts = [run.ask(request(f"cold {number}", DOCUMENTS[number])) for number in range(3)]
    run.submit(request("loads", DOCUMENTS[0]))
    run.now_us += 200
    run.step(Forget())
    assert run.changes[-1] == CacheEmptied()
    run.to_end()
    assert (run.tokens["loads"], run.cached["loads"]) == (texts[0], 36)
    for number in range(3):
        run.ask(request(f"again {number}", DOCUMENTS[number]))
        assert run.cached[f"again {number}"] == 0


def test_settings() -> None:
    """Blocks that others may fetch are not kept in a host tier yet."""
    with pytest.raises(CallerError, match="host_blocks and transfer do not go together yet"):
        SimulatedSettings.parse({"host_blocks": 1, "transfer": True})
    with pytest.raises(CallerError, match="host_us_per_block must not be negative"):
        SimulatedSettings.parse({"host_us_per_block": -1})
    with pytest.raises(CallerError, match="fetched into a host, and from one: give host_blocks, too"):
        SimulatedSettings.parse({"fetch_mb_per_s": 1})
