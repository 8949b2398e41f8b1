"""What every engine does about logprobs and about tokens that are forbidden, forced or alone allowed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from actors.engines import engine as engine_module
from actors.engines.engine import Engine
from core.errors import CallerError
from core.generation import GenerateRequest, Output, TokenLogprobs
from core.prompt import tokens_from_bytes
from tests.contracts.engine import answer_to, prompt, request, until_idle

PROBABILITY_MARGIN = 1e-3
"""How far the likelihoods that an engine tells may be above one together."""


async def outputs_of(engine: Engine, asked: GenerateRequest) -> list[Output]:
    """All outputs, each with logprobs for just its own tokens."""
    outputs = [output async for output in engine.generate(asked)]
    if asked.sampling.logprobs >= 0:
        assert [tuple(told.token for told in output.logprobs) for output in outputs] == [
            output.tokens for output in outputs
        ]
    else:
        assert not any(output.logprobs for output in outputs)
    assert not any(output.prompt_logprobs for output in outputs[1:])
    return outputs


def check(told: TokenLogprobs, top: int) -> None:
    """As many as were asked for, best first, none twice, together not above one; the token has one likelihood."""
    tokens, logprobs = [token for token, _ in told.top], [logprob for _, logprob in told.top]
    assert len(tokens) == len(set(tokens)) == top
    assert logprobs == sorted(logprobs, reverse=True)
    assert max([told.logprob, *logprobs]) <= 0
    apart = {**dict(told.top), told.token: told.logprob}
    assert sum(map(math.exp, apart.values())) <= 1 + PROBABILITY_MARGIN
    assert dict(told.top).get(told.token, told.logprob) == told.logprob
    assert told.rank >= 1
    assert (told.token in tokens) == (told.rank <= top), "one of so many likeliest, or behind them"


class SamplingContract:
    """Give `engine`; at least 2000 token ids, all of a prompt's among them, and at most 20 logprobs for a token."""

    @pytest.mark.parametrize("top", [0, 1, 5, 20])
    async def test_logprobs(self, engine: Engine, top: int) -> None:
        """Each token comes with its own; greedy, it is the likeliest."""
        outputs = await outputs_of(engine, request(prompt(20), 6, logprobs=top))
        told = [one for output in outputs for one in output.logprobs]
        assert len(told) == 6
        for one in told:
            check(one, top)
            assert not top or one.top[0] == (one.token, one.logprob)

    @pytest.mark.parametrize("top", [0, 3])
    async def test_prompt_logprobs(self, engine: Engine, top: int) -> None:
        """One for each token of the prompt, none for the first, whether it is in the cache or not."""
        asked = prompt(engine.info.block_size * 2 + 5)
        found = []
        for _ in range(2):
            outputs = await outputs_of(engine, request(asked, 3, prompt_logprobs=top))
            first, *told = outputs[0].prompt_logprobs
            assert first is None
            assert [one.token for one in told if one is not None] == list(tokens_from_bytes(asked)[1:])
            for one in told:
                assert one is not None
                check(one, top)
            found.append([round(one.logprob, 3) for one in told if one is not None])
        assert found[0] == found[1]
        assert (await answer_to(engine, request(asked, 3))).finish == "length"

    async def test_logprobs_of_tokens_that_waited(self, engine: Engine) -> None:
        """Tokens that nobody took for a while leave together, with their logprobs."""
        stream = engine.generate(request(prompt(10), 12, logprobs=2))
        first = await anext(stream)
        await until_idle(engine)
        outputs = [first, *[output async for output in stream]]
        told = [one for output in outputs for one in output.logprobs]
        assert [one.token for one in told] == [token for output in outputs for token in output.tokens]
        assert len(told) == 12
        for one in told:
            check(one, 2)

    async def test_only_allowed_tokens(self, engine: Engine) -> None:
        """An answer holds no other token, one that is forbidden among them neither."""
        found = await answer_to(engine, request(prompt(20), 20, allowed_token_ids=(70, 80, 90), temperature=1.0))
        assert set(found.tokens) <= {70, 80, 90}
        found = await answer_to(
            engine, request(prompt(20), 20, allowed_token_ids=(70, 80), logit_bias=((70, -100.0),), temperature=1.0)
        )
        assert set(found.tokens) == {80}

    async def test_logit_bias(self, engine: Engine) -> None:
        """At its ends it forces a token, or keeps it out."""
        asked = prompt(20)
        free = await answer_to(engine, request(asked, 6))
        forced = await answer_to(engine, request(asked, 6, logit_bias=((77, 100.0),)))
        assert set(forced.tokens) == {77}
        kept_out = tuple(sorted((token, -100.0) for token in set(free.tokens)))
        without = await answer_to(engine, request(asked, 6, logit_bias=kept_out))
        assert len(without.tokens) == 6
        assert set(without.tokens).isdisjoint(free.tokens)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"logprobs": 21},
            {"prompt_logprobs": 21},
            {"logit_bias": ((1 << 20, 1.0),)},
            {"logit_bias": ((-1, 1.0),)},
            {"allowed_token_ids": (1 << 20,)},
            {"allowed_token_ids": (-1,)},
        ],
    )
    async def test_wrong_values(self, engine: Engine, wrong: dict[str, Any]) -> None:
        """They are the caller's error in a sentence, and the engine goes on."""
        with pytest.raises(CallerError, match=r"\w+ \w+"):
            await answer_to(engine, request(prompt(10), 4, **wrong))
        await engine.check()

    async def test_too_much_of_a_prompt(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is told of one prompt has a bound over all its tokens."""
        monkeypatch.setattr(engine_module, "PROMPT_LOGPROBS_MAX", 40)
        assert len((await outputs_of(engine, request(prompt(20), 2, prompt_logprobs=1)))[0].prompt_logprobs) == 20
        with pytest.raises(CallerError, match="2 logprobs for each of the prompt's 21 tokens"):
            await answer_to(engine, request(prompt(21), 2, prompt_logprobs=1))

    async def test_abort_with_logprobs(self, engine: Engine) -> None:
        """Closing the iterator ends the work here, too."""
        stream = engine.generate(request(prompt(40), 200, logprobs=5, prompt_logprobs=1))
        assert (await anext(stream)).logprobs
        await stream.aclose()  # type: ignore[attr-defined]
        await until_idle(engine)
        assert engine.load().blocks_used == 0

    async def test_eight_with_their_own(self, engine: Engine) -> None:
        """What one request asks for changes nothing in those beside it."""
        asked = prompt(20)
        plain = await answer_to(engine, request(asked, 8))
        kinds: list[dict[str, Any]] = [{}, {"logprobs": 3}, {"logit_bias": ((77, 100.0),)}, {"allowed_token_ids": (5,)}]
        answers = await asyncio.gather(*(outputs_of(engine, request(asked, 8, **kind)) for kind in kinds * 2))
        tokens = [tuple(token for output in outputs for token in output.tokens) for outputs in answers]
        assert tokens == [plain.tokens, plain.tokens, (77,) * 8, (5,) * 8] * 2
