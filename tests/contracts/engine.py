"""What every engine does for its worker. Prompts are short, and nothing here is about time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from actors.engines.engine import CacheChange, Engine
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import CallerError
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, new_id
from core.kv_transfer import KvPull
from core.prompt import Prompt, scope_bytes, tokens_to_bytes

IDLE_TIMEOUT_S = 20
HASH_SEED = 7


class Started(NamedTuple):
    """An engine that serves, and all cache changes that it told since its start."""

    engine: Engine
    changes: list[CacheChange]


class Answer(NamedTuple):
    """All outputs of one generation as one."""

    tokens: tuple[int, ...]
    finish: str | None
    cached_tokens: int | None


def prompt(tokens: int) -> bytes:
    """Token ids that nobody sent before."""
    fresh = random.Random(new_id())
    return tokens_to_bytes(fresh.randrange(10, 2000) for _ in range(tokens))


def request(tokens: bytes, max_tokens: int = 4, *, cache_salt: str | None = None, **sampling: Any) -> GenerateRequest:
    """A greedy request that no end token ends, unless told."""
    chosen: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, **sampling}
    return GenerateRequest(
        id=RequestId(new_id()), tokens=tokens, sampling=Sampling(max_tokens=max_tokens, **chosen), cache_salt=cache_salt
    )


async def answer_to(engine: Engine, asked: GenerateRequest, pull: KvPull | None = None) -> Answer:
    """The whole answer; `cached_tokens` must be said once, with the first tokens or with the last."""
    outputs: list[Output] = [output async for output in engine.generate(asked, pull)]
    assert [output.finish for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    counts = [output.cached_tokens for output in outputs]
    assert set(counts[1:-1]) <= {None}
    assert len(counts) == 1 or None in {counts[0], counts[-1]}
    tokens = tuple(token for output in outputs for token in output.tokens)
    return Answer(tokens, outputs[-1].finish, counts[-1] if counts[0] is None else counts[0])


async def until_idle(engine: Engine) -> None:
    """The engine runs nothing and nothing waits in it."""
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        while engine.load().running or engine.load().waiting:
            await asyncio.sleep(0.01)


def predicted_cached_tokens(started: Started, asked: GenerateRequest) -> int:
    """What the cache changes up to now say that the engine will find."""
    size = started.engine.info.block_size
    mirror = CacheMirror(size, HASH_SEED)
    for change in started.changes:
        mirror.apply(change)
    held = set(mirror.held("device"))
    whole = Prompt(asked.tokens, size, HASH_SEED, scope_bytes(asked.adapter, asked.cache_salt))
    depth = 0
    while depth < whole.blocks_reusable and whole.key(depth + 1) in held:
        depth += 1
    return depth * size


class EngineContract:
    """Give `started`; block_size at most 64, at least 8 requests at once, room for 100 blocks."""

    @pytest.fixture
    async def started(self) -> AsyncIterator[Started]:
        """The engine under test; other tests may have used it before."""
        raise NotImplementedError
        yield

    @pytest.fixture
    def engine(self, started: Started) -> Engine:
        return started.engine

    async def test_generates(self, engine: Engine) -> None:
        """An answer has as many tokens as asked for and says that this is why it ends."""
        answer = await answer_to(engine, request(prompt(20), 6))
        assert (len(answer.tokens), answer.finish, answer.cached_tokens) == (6, "length", 0)

    async def test_greedy_is_repeatable(self, engine: Engine) -> None:
        """The same prompt, greedy, gives the same tokens again."""
        asked = prompt(50)
        first = await answer_to(engine, request(asked, 12))
        second = await answer_to(engine, request(asked, 12))
        assert first.tokens == second.tokens

    async def test_stop_token(self, engine: Engine) -> None:
        """A stop token ends the answer and is its last token."""
        asked = prompt(30)
        free = await answer_to(engine, request(asked, 8))
        stop = free.tokens[3]
        until = free.tokens.index(stop) + 1
        answer = await answer_to(engine, request(asked, 8, stop_token_ids=(stop,)))
        assert (answer.tokens, answer.finish) == (free.tokens[:until], "stop")

    async def test_min_tokens(self, engine: Engine) -> None:
        """No stop token ends an answer before min_tokens."""
        asked = prompt(30)
        free = await answer_to(engine, request(asked, 8))
        answer = await answer_to(engine, request(asked, 8, stop_token_ids=(free.tokens[0],), min_tokens=5))
        assert len(answer.tokens) >= 5
        assert free.tokens[0] not in answer.tokens[:5]

    async def test_abort_frees(self, engine: Engine) -> None:
        """Closing the iterator in the middle of an answer ends the work on it."""
        stream = engine.generate(request(prompt(40), 200))
        first = await anext(stream)
        assert first.tokens
        await stream.aclose()  # type: ignore[attr-defined]
        await until_idle(engine)
        assert engine.load().blocks_used == 0

    async def test_cached_tokens_come_first(self, engine: Engine) -> None:
        """They come with the first tokens, so that the log has them when a prefill is over."""
        outputs = [output async for output in engine.generate(request(prompt(20), 3))]
        assert outputs[0].cached_tokens == 0

    async def test_cached_tokens(self, engine: Engine) -> None:
        """A prompt sent again is taken from the cache in whole blocks, all but its last token."""
        size = engine.info.block_size
        for length in (2 * size, 2 * size + 1, 3 * size - 1):
            asked = prompt(length)
            await answer_to(engine, request(asked))
            again = await answer_to(engine, request(asked))
            assert again.cached_tokens == (length - 1) // size * size

    async def test_mirror_predicts(self, started: Started) -> None:
        """What the cache changes say is there is exactly what the next request gets: forks, answers, equal prompts."""
        engine, size = started.engine, started.engine.info.block_size
        salt = new_id()
        trunk = prompt(3 * size)
        turn = await answer_to(engine, request(trunk, 16, cache_salt=salt))
        next_turn = trunk + tokens_to_bytes(turn.tokens) + prompt(size)
        fork = trunk[: 4 * size] + prompt(2 * size)
        for cache_salt in (salt, None):
            for asked in (trunk, next_turn, fork, fork[: 4 * (size + 1)], trunk[: 4 * size], next_turn):
                await engine.settle()
                sent = request(asked, 2, cache_salt=cache_salt)
                predicted = predicted_cached_tokens(started, sent)
                assert (await answer_to(engine, sent)).cached_tokens == predicted
        assert predicted > 3 * size - 1

    async def test_copies_are_mirrored(self, started: Started) -> None:
        """Equal prompts at the same time may fill several blocks alike; the prediction stays exact."""
        engine, size = started.engine, started.engine.info.block_size
        asked = prompt(2 * size)
        answers = await asyncio.gather(*(answer_to(engine, request(asked, 4)) for _ in range(4)))
        assert len({answer.finish for answer in answers}) == 1
        await until_idle(engine)
        await engine.settle()
        longer = request(asked + prompt(5))
        predicted = predicted_cached_tokens(started, longer)
        assert predicted == 2 * size
        assert (await answer_to(engine, longer)).cached_tokens == predicted

    async def test_salt_isolates(self, engine: Engine) -> None:
        """A cache salt shares nothing with another salt or with none."""
        size = engine.info.block_size
        asked = prompt(2 * size + 3)
        cached = [
            (await answer_to(engine, request(asked, 2, cache_salt=salt))).cached_tokens
            for salt in (None, "one", "one", "two", None)
        ]
        assert cached == [0, 0, 2 * size, 0, 2 * size]

    async def test_too_long(self, engine: Engine) -> None:
        """A prompt that leaves no room for an answer is the caller's error, and the engine goes on."""
        with pytest.raises(CallerError, match="token"):
            await answer_to(engine, request(prompt(engine.info.context_max)))
        assert (await answer_to(engine, request(prompt(10), 2))).finish == "length"

    async def test_eight_at_once(self, engine: Engine) -> None:
        """Requests at the same time each get their own whole answer, and nothing stays behind."""
        asked = [request(prompt(20 + 10 * i), 5 + i) for i in range(8)]
        answers = await asyncio.gather(*(answer_to(engine, one) for one in asked))
        assert [len(answer.tokens) for answer in answers] == [5 + i for i in range(8)]
        assert {answer.finish for answer in answers} == {"length"}
        await until_idle(engine)
        load = engine.load()
        assert (load.running, load.waiting, load.blocks_used) == (0, 0, 0)
        assert load.blocks_total > 0

    async def test_check(self, engine: Engine) -> None:
        """An engine that serves is alive and says what it is."""
        await engine.check()
        assert engine.info.engine
        assert 0 < engine.info.block_size <= 64
        assert engine.info.context_max > engine.info.block_size
        assert engine.info.slots >= 8
