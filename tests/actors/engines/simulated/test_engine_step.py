"""The simulated engine in virtual time: everything follows from state, time and inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from actors.engines.engine import CacheChange, CacheRemoved, CacheStored
from actors.engines.simulated.engine_state import Abort, Input, Submit
from actors.engines.simulated.engine_step import WORK_MAX, EngineState, StepResult, check_request, load_of, step
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.engines.simulated.token_sequence import TokenSequence
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import CallerError
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import Prompt, tokens_to_bytes

SMALL = SimulatedSettings(
    block_size=4, capacity_blocks=16, context_max=64, max_seqs=4, prefill_us_per_token=10, decode_us_per_step=100
)


def request(id: str, tokens: list[int], max_tokens: int = 4, priority: int = 0, **sampling: Any) -> GenerateRequest:
    chosen: dict[str, Any] = {"ignore_eos": True, **sampling}
    return GenerateRequest(
        id=RequestId(id),
        tokens=tokens_to_bytes(tokens),
        sampling=Sampling(max_tokens=max_tokens, **chosen),
        priority=priority,
    )


class Run:
    """An engine driven by virtual time, with all that it ever said."""

    def __init__(self, settings: SimulatedSettings = SMALL) -> None:
        self.state = EngineState(settings)
        self.now_us = 0
        self.log: list[tuple[int, StepResult]] = []
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.first_us: dict[str, int] = {}
        self.changes: list[CacheChange] = []

    def step(self, *inputs: Input) -> int | None:
        result = step(self.state, self.now_us, inputs)
        self.log.append((self.now_us, result))
        self.changes += result.changes
        for name, output in result.outputs:
            self.tokens.setdefault(name, []).extend(output.tokens)
            self.first_us.setdefault(name, self.now_us)
            if output.cached_tokens is not None:
                self.cached[name] = output.cached_tokens
            if output.finish is not None:
                self.finish[name] = output.finish
        return result.due_us

    @property
    def all_changes(self) -> list[CacheChange]:
        """Those that were told, and those that will be when the pass ends that is under way."""
        return self.changes + (self.state.work.changes if self.state.work else [])

    def submit(self, *requests: GenerateRequest) -> int | None:
        for one in requests:
            check_request(self.state.settings, one)
        return self.step(*(Submit(one) for one in requests))

    def to_end(self) -> None:
        """Everything submitted is finished."""
        due = self.step()
        while due is not None:
            self.now_us = due
            due = self.step()

    def ask(self, one: GenerateRequest) -> list[int]:
        self.submit(one)
        self.to_end()
        return self.tokens[one.id]


def test_timing() -> None:
    """A pass takes its prompts' tokens' time, and a decode step's if somebody decodes; all get a token at its end."""
    run = Run()
    run.submit(request("a", [1] * 10, 4), request("b", [2] * 20, 2))
    run.now_us = 350
    run.submit(request("c", [3] * 5, 1))
    run.to_end()
    assert [(at, [name for name, _ in result.outputs]) for at, result in run.log if result.outputs] == [
        (350, ["a", "b"]),
        (400, ["a", "b"]),
        (550, ["a", "c"]),
        (650, ["a"]),
    ]
    assert [result.times_us for _, result in run.log if result.outputs] == [[300, 300], [400, 400], [550, 550], [650]]
    assert set(run.finish.values()) == {"length"}


def test_late_is_the_same() -> None:
    """Who looks only long after sees what would have been seen on time; at most WORK_MAX pieces of work at once."""
    on_time, late = Run(), Run()
    for run in (on_time, late):
        run.submit(request("a", [1] * 10, 20), request("b", [2] * 20, 7))
    on_time.to_end()
    late.now_us = 1_000_000
    assert late.step() is None
    assert late.tokens == on_time.tokens
    assert late.changes == on_time.changes
    long = Run(SimulatedSettings(context_max=4096))
    long.submit(request("a", [1], WORK_MAX + 10))
    long.now_us = 10**9
    assert long.step() is not None
    assert len(long.tokens["a"]) == WORK_MAX
    assert long.step() is None
    assert long.finish == {"a": "length"}


def random_history(seed: int) -> Iterator[tuple[int, list[Submit | Abort]]]:
    """Bursts of requests with shared prefixes and equal prompts, some given up, at random times."""
    dice = random.Random(seed)
    at_us, known = 0, list[str]()
    trunks = [[dice.randrange(9) for _ in range(40)] for _ in range(3)]
    for burst in range(60):
        at_us += dice.choice([0, 50, 400, 3000])
        inputs: list[Submit | Abort] = []
        for i in range(dice.randrange(4)):
            tokens = [*dice.choice(trunks)[: dice.randrange(1, 40)], *[dice.randrange(3)] * dice.randrange(4)]
            one = request(f"{burst}.{i}", tokens, dice.randrange(1, 14), dice.randrange(2))
            known.append(one.id)
            inputs.append(Submit(one))
            if dice.random() < 0.3:
                inputs.append(Submit(request(f"{burst}.{i}=", tokens, 12)))
        if known and dice.random() < 0.3:
            inputs.append(Abort(RequestId(dice.choice(known))))
        yield at_us, inputs


@pytest.mark.parametrize("seed", range(5))
def test_random_histories(seed: int) -> None:
    """Whatever happens: a second run says the same; blocks add up; and the mirror finds what the engine would find."""
    runs = [Run(), Run()]
    for run in runs:
        mirror, seen = CacheMirror(SMALL.block_size, 7), 0
        prompts: list[bytes] = []
        for at_us, inputs in random_history(seed):
            run.now_us = max(at_us, run.now_us)
            run.step(*inputs)
            prompts += [item.request.tokens for item in inputs if isinstance(item, Submit)]
            for change in run.all_changes[seen:]:
                mirror.apply(change)
            seen = len(run.all_changes)
            check_blocks(run.state)
            held = set(mirror.held("device"))
            for tokens in prompts[-30:]:
                assert predicted(tokens, held) == found(run.state, tokens)
        run.to_end()
        assert load_of(run.state)[:3] == (0, 0, 0)
    assert runs[0].log == runs[1].log
    stored = [name for change in runs[0].changes if isinstance(change, CacheStored) for name in change.blocks]
    assert any(isinstance(change, CacheRemoved) for change in runs[0].changes), "nothing was evicted"
    assert len(stored) > len(set(stored)), "no copies were made"


def check_blocks(state: EngineState) -> None:
    """Every block is free or used by the sequences that name it."""
    users: dict[int, int] = {}
    for seq in state.admitted:
        assert len(seq.blocks) <= -(-(seq.tokens_max - 1) // seq.size)
        for block in seq.blocks:
            users[block.id] = users.get(block.id, 0) + 1
            assert block.users
    assert len(users) == state.pool.used


def predicted(tokens: bytes, held: set[int]) -> int:
    prompt = Prompt(tokens, SMALL.block_size, 7)
    depth = 0
    while depth < prompt.blocks_reusable and prompt.key(depth + 1) in held:
        depth += 1
    return depth


def found(state: EngineState, tokens: bytes) -> int:
    probe = GenerateRequest(id=RequestId("probe"), tokens=tokens, sampling=Sampling(max_tokens=1))
    return len(state.pool.find(TokenSequence(probe, SMALL, state.hash_cache).names_reusable))


def test_prefix_reuse() -> None:
    """Full blocks of prompt and answer are found again, a prompt's last token never; what is not found costs time."""
    run = Run()
    first = run.ask(request("a", [7] * 8, 6))
    assert run.cached["a"] == 0
    run.ask(request("b", [7] * 8, 1))
    assert run.cached["b"] == 4
    started = run.now_us
    run.ask(request("c", [7] * 8 + first, 1))
    assert run.cached["c"] == 12
    assert run.first_us["c"] - started == 2 * 10


def test_events() -> None:
    """Blocks are told when they are full: a prompt's as one chain, an answer's one by one, behind their parent."""
    run = Run()
    tokens = run.ask(request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], 5))
    chain, single = run.changes
    assert isinstance(chain, CacheStored)
    assert isinstance(single, CacheStored)
    assert (chain.parent, tuple(chain.tokens), len(chain.blocks)) == (None, (1, 2, 3, 4, 5, 6, 7, 8), 2)
    assert (single.parent, tuple(single.tokens)) == (chain.blocks[-1], (9, *tokens[:3]))


def test_eviction_is_oldest_first_and_spares_what_runs() -> None:
    """The least recently used content goes first, of one sequence the deepest block; pinned blocks stay."""
    run = Run()
    run.ask(request("old", [1] * 17, 1))
    run.ask(request("new", [2] * 17, 1))
    run.ask(request("old again", [1] * 17, 1))
    assert run.cached["old again"] == 16
    names = [change.blocks for change in run.changes if isinstance(change, CacheStored)]
    run.submit(request("pin", [1] * 17, 3))
    run.ask(request("big", [3] * 30, 1))
    gone = [name for change in run.changes if isinstance(change, CacheRemoved) for name in change.blocks]
    assert gone == list(names[1][::-1])[: len(gone)]
    assert gone


def test_full_engine_queues() -> None:
    """Who finds no room waits, in order of priority and arrival, and is served when there is; nobody is thrown out."""
    run = Run()
    run.submit(
        request("a", [1] * 40, 20),
        request("late", [2] * 40, 20, priority=1),
        request("b", [3] * 30, 5),
        request("c", [4] * 3, 1),
    )
    assert load_of(run.state)[:4] == (1, 3, 10, 16)
    run.to_end()
    assert sorted(run.first_us, key=run.first_us.__getitem__) == ["a", "b", "c", "late"]
    assert set(run.finish.values()) == {"length"}


def test_max_seqs() -> None:
    """No more than max_seqs run at once."""
    run = Run()
    due = run.submit(*(request(f"{i}", [i], 4) for i in range(9)))
    while due is not None:
        assert load_of(run.state).running <= SMALL.max_seqs
        run.now_us = due
        due = run.step()
    assert len(run.finish) == 9


def test_refusals() -> None:
    """What can never be served is the caller's error, with a text that says what to change."""
    tight = SimulatedSettings(block_size=4, capacity_blocks=4, context_max=64)
    for bad, text in (
        (request("a", []), "at least one token"),
        (request("a", [1] * 64), "64 tokens"),
        (request("a", [1], 0), "max_tokens"),
        (request("a", [1] * 10, 8), "5 cache blocks"),
    ):
        with pytest.raises(CallerError, match=text):
            check_request(tight, bad)
    check_request(tight, request("a", [1] * 10, 7))


def test_context_ends_an_answer() -> None:
    """An answer ends where the context does."""
    assert len(Run().ask(request("a", [1] * 60, 100))) == 4


@pytest.mark.parametrize("done", [1, 5, 11])
def test_continued_elsewhere(done: int) -> None:
    """Prompt plus the first k tokens, sent to another engine, gives the tokens that would have followed."""
    settings = SimulatedSettings(eos_every=40)
    prompt = list(range(100, 150))
    whole = Run(settings).ask(request("a", prompt, 12))
    rest = Run(settings).ask(request("a", prompt + whole[:done], 12 - done))
    assert whole == whole[:done] + rest
    assert len(set(whole)) > 6


def test_end_token() -> None:
    """The end token comes now and then and ends the answer, unless ignored or too early."""
    settings = SimulatedSettings(eos_every=20, context_max=300)
    ends = [Run(settings).ask(request("a", [n], 200, ignore_eos=False, min_tokens=3)) for n in range(30)]
    assert all(settings.eos_token not in tokens[:-1] for tokens in ends)
    assert all(len(tokens) > 3 for tokens in ends)
    assert sum(tokens[-1] == settings.eos_token for tokens in ends) > 25
    assert settings.eos_token in Run(settings).ask(request("a", [1], 200))
    tiny = SimulatedSettings(vocab=20, token_min=16, eos_every=0)
    assert len(Run(tiny).ask(request("a", [1], 9, stop_token_ids=(16, 17, 18, 19), min_tokens=5))) == 6


def test_abort() -> None:
    """What is given up, waiting, in prefill or running, frees its blocks at once, and the next one goes on."""
    run = Run()
    run.submit(request("a", [1] * 40, 20), request("b", [2] * 40, 20), request("c", [3] * 40, 20))
    run.now_us = 100
    run.step(Abort(RequestId("a")), Abort(RequestId("b")), Abort(RequestId("nobody")))
    assert run.finish == {"a": "abort", "b": "abort"}
    assert load_of(run.state)[:2] == (1, 0)
    run.now_us = 800
    run.step(Abort(RequestId("c")))
    assert len(run.tokens["c"]) == 4
    assert load_of(run.state)[:3] == (0, 0, 0)
    assert run.log[-1][1].due_us is None
