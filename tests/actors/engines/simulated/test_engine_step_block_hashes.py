"""Requests of which only the hashes of their prompts' blocks are known: as others, but without tokens."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from actors.engines.engine import CacheRemoved, CacheStored
from actors.engines.simulated.engine_state import Abort, BlocksArrived, Input, Submit
from actors.engines.simulated.engine_step import check_request, load_of
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_settings import SimulatedSettings, mocker_settings
from core.errors import CallerError
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from tests.actors.engines.simulated.test_engine_step import SMALL, Run

MOCKER = mocker_settings(block_size=4, capacity_blocks=40)


def known(id: str, tokens: int, hashes: Iterable[int], max_tokens: int = 4, priority: int = 0) -> Submit:
    asked = GenerateRequest(id=RequestId(id), tokens=b"", sampling=Sampling(max_tokens=max_tokens), priority=priority)
    return Submit(asked, known=BlockHashPrompt(tokens, hashes_to_bytes(hashes)))


def happened(run: Run) -> list[tuple[int, str, int, str | None]]:
    """When which request had how many tokens more, and why it ended; whenever somebody looked."""
    return [
        (at_us, name, len(output.tokens), output.finish)
        for _, result in run.log
        for (name, output), at_us in zip(result.outputs, result.times_us, strict=True)
    ]


def test_answer() -> None:
    """The first token is told at its time, the others with the last one's; names are the hashes, and hashes of the
    request's own; nothing is due between."""
    run = Run()
    assert run.step(known("a", 10, [11, 12], 8)) == 100
    run.now_us = 100
    assert run.step() == 800
    run.to_end()
    assert happened(run) == [(100, "a", 1, None), (800, "a", 7, "length")]
    assert run.tokens == {"a": [0] * 8}
    prompt, answer = run.changes
    assert isinstance(prompt, CacheStored)
    assert isinstance(answer, CacheStored)
    assert (prompt.blocks, prompt.parent, prompt.tokens, prompt.block_size) == ((11, 12), None, (), 4)
    assert (len(set(answer.blocks)), answer.parent) == (2, 12)
    assert load_of(run.state) == (0, 0, 0, 16, 8)


def test_prefix_reuse() -> None:
    """What was stored under the same hashes is found, but for the prompt's last token."""
    run = Run()
    run.step(known("a", 12, [1, 2, 3], 1))
    run.to_end()
    run.step(known("b", 12, [1, 2, 3], 1), known("c", 13, [1, 2, 3], 1), known("d", 12, [1, 2, 4], 1))
    run.to_end()
    assert run.cached == {"a": 0, "b": 8, "c": 12, "d": 8}


def test_prompts_of_one_pass_share() -> None:
    """Who comes after in the same pass finds the blocks of who came before."""
    run = Run()
    run.step(known("a", 12, [1, 2, 3], 1), known("b", 14, [1, 2, 3], 1))
    assert load_of(run.state).blocks_used == 4
    run.to_end()
    assert run.cached == {"a": 0, "b": 12}
    assert run.first_us == {"a": 140, "b": 140}


def test_same_time_same_pass() -> None:
    """Requests that come at one time are in one pass, also if the engine is told of one after the other."""
    together, apart = Run(), Run()
    together.step(known("a", 10, [1, 2]), known("b", 20, [3, 4, 5, 6, 7]))
    apart.step(known("a", 10, [1, 2]))
    apart.step(known("b", 20, [3, 4, 5, 6, 7]))
    for run in (together, apart):
        run.to_end()
    assert happened(together) == happened(apart)
    assert together.first_us == {"a": 300, "b": 300}


def test_an_arrival_amidst() -> None:
    """Who comes while others decode is in the next pass, not after the first of them ends."""
    run = Run()
    run.step(known("a", 10, [1, 2], 30))
    run.now_us = 100
    assert run.step() == 3000
    run.now_us = 1234
    assert run.step(known("b", 5, [9], 1)) == 1300
    run.to_end()
    assert happened(run) == [(100, "a", 1, None), (1450, "b", 1, "length"), (3050, "a", 29, "length")]


def random_history(seed: int) -> list[tuple[int, list[Input]]]:
    """Bursts with shared prefixes, some requests given up, some with priority; too many for the cache."""
    dice = random.Random(seed)
    at_us, ids, history = 0, list[str](), list[tuple[int, list[Input]]]()
    for burst in range(25):
        at_us += dice.choice([0, 3000, 20_000, 90_000])
        inputs: list[Input] = []
        for number in range(dice.randrange(5)):
            trunk, depth, own = dice.randrange(3), dice.randrange(8), dice.randrange(8)
            hashes = [100 * trunk + place for place in range(depth)]
            hashes += [10_000 * burst + 100 * number + place for place in range(own)]
            tokens = 4 * len(hashes) + dice.randrange(1, 4)
            ids.append(f"{burst}.{number}")
            inputs.append(known(ids[-1], tokens, hashes, dice.randrange(1, 60), dice.randrange(2)))
        if ids and dice.random() < 0.3:
            inputs.append(Abort(RequestId(dice.choice(ids))))
        history.append((at_us, inputs))
    return history


@pytest.mark.parametrize("settings", [MOCKER, dataclasses.replace(MOCKER, batched_tokens_max=17), SMALL])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_looks_when(seed: int, settings: SimulatedSettings) -> None:
    """All passes at one go are the same as every pass by itself, whenever somebody looks; blocks add up."""
    runs = []
    for glance_us in (0, 2300):
        run = Run(settings)
        for at_us, inputs in random_history(seed):
            while glance_us and run.now_us + glance_us < at_us:
                run.now_us += glance_us
                run.step()
            run.now_us = max(at_us, run.now_us)
            run.step(*inputs)
            used = {block.id for seq in run.state.admitted for block in seq.blocks}
            assert run.state.pool.used == len(used)
        run.to_end()
        assert load_of(run.state)[:3] == (0, 0, 0)
        runs.append(run)
    assert happened(runs[0]) == happened(runs[1])
    assert len(runs[0].log) < len(runs[1].log)
    assert runs[0].state.steps == runs[1].state.steps
    assert changed(runs[0]) == changed(runs[1])
    assert runs[0].state.thrown_out == runs[1].state.thrown_out


def changed(run: Run) -> tuple[list[int], list[int]]:
    """All names that came and went; the order between requests is that in which they were told."""
    stored = [name for change in run.changes if isinstance(change, CacheStored) for name in change.blocks]
    removed = [name for change in run.changes if isinstance(change, CacheRemoved) for name in change.blocks]
    return sorted(stored), sorted(removed)


def test_told_when_given_up() -> None:
    """Tokens that are there and were not told are told with the end."""
    run = Run()
    run.step(known("a", 10, [1, 2], 20), known("b", 5, [3], 20))
    run.now_us = 560
    run.step()
    run.now_us = 760
    run.step(Abort(RequestId("a")))
    run.to_end()
    assert happened(run) == [
        (150, "a", 1, None),
        (150, "b", 1, None),
        (760, "a", 6, "abort"),
        (2050, "b", 19, "length"),
    ]


def test_held_and_fetched() -> None:
    """A prompt that is computed for others, and its blocks at another engine: as with tokens, whatever they hold."""
    there, here = Run(), Run()
    there.step(known("a", 10, [1, 2], 1)._replace(hold=True))
    there.to_end()
    (prefilled,) = [one for _, result in there.log for one in result.prefilled]
    assert (prefilled.tokens, len(prefilled.blocks), there.tokens) == (10, 3, {})
    here.step(known("a", 10, [1, 2], 5)._replace(pull=True))
    ((fetch, blocks),) = here.log[-1][1].fetches
    assert (fetch, blocks) == ("a", 3)
    here.step(BlocksArrived(RequestId("a"), tuple(there.state.pool.contents(prefilled.blocks))))
    here.to_end()
    assert happened(here) == [(400, "a", 1, None), (800, "a", 4, "length")]
    stored = here.changes[0]
    assert isinstance(stored, CacheStored)
    assert stored.blocks == (1, 2)


@pytest.mark.parametrize(
    ("submit", "said"),
    [
        (known("a", 10, [1, 2, 3]), "10 tokens has 2 full blocks of 4, but 3 hashes"),
        (known("a", 0, []), "must have a length"),
        (known("a", 64, range(16)), "no room for an answer"),
        (known("a", 30, range(7), 0), "max_tokens"),
    ],
)
def test_refusals(submit: Submit, said: str) -> None:
    """What cannot be is the caller's error."""
    with pytest.raises(CallerError, match=said):
        check_request(SMALL, submit.request, submit.known)
    check_request(SMALL, known("a", 10, [1, 2]).request, known("a", 10, [1, 2]).known)
