"""What the simulated engine makes up beside tokens, answers that it is given, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from actors.engines.simulated import token_sequence
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from core.errors import CallerError
from core.generation import TASK_EMBED, GenerateRequest, Guided, Output
from core.prompt import tokens_to_bytes
from tests.actors.engines.simulated.test_engine_step import Run
from tests.actors.engines.simulated.test_engine_step import request as asked_step
from tests.contracts.engine import answer_to, prompt, request
from tests.contracts.engine_sampling import outputs_of

FAST = SimulatedSettings(block_size=16, capacity_blocks=200, context_max=1024, time_scale=20.0)
REPLIES = ('<tool_call>{"name": "f"}</tool_call>', "It rains.", "I think… no: ü")


@asynccontextmanager
async def running(settings: SimulatedSettings = FAST) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine("sim", settings)
    await engine.start(lambda _: None)
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.fixture(scope="module")
def replying(tiny_checkpoint: Path) -> SimulatedSettings:
    return dataclasses.replace(FAST, model_path=str(tiny_checkpoint), replies=REPLIES)


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))


def embed(tokens: bytes) -> GenerateRequest:
    return msgspec.structs.replace(request(tokens, 1), task=TASK_EMBED)


async def one(engine: SimulatedEngine, asked: GenerateRequest) -> Output:
    (output,) = [output async for output in engine.generate(asked)]
    return output


async def test_embedding() -> None:
    """One unit vector of the size that was set, a function of the tokens; the prompt's blocks are cached as others."""
    asked = prompt(40)
    async with running(dataclasses.replace(FAST, embedding_dimensions=48)) as engine:
        first, second, other = [await one(engine, embed(tokens)) for tokens in (asked, asked, prompt(40))]
        assert (first.tokens, first.finish, first.cached_tokens) == ((), "stop", 0)
        assert second == msgspec.structs.replace(first, cached_tokens=32, engine_us=second.engine_us)
        assert other.embedding != first.embedding
        vector = struct.unpack("<48f", first.embedding)
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-6)
        assert engine.load()[:3] == (0, 0, 0)


async def test_an_embedding_of_the_whole_context() -> None:
    """It leaves no room for an answer and needs none, and has a block for each of its tokens; one more is too many."""
    for context_max, capacity_blocks in ((64, 4), (65, 5)):
        small = dataclasses.replace(FAST, context_max=context_max, capacity_blocks=capacity_blocks)
        async with running(small) as engine:
            assert (await one(engine, embed(prompt(context_max)))).embedding
            for refused in (embed(prompt(context_max + 1)), request(prompt(context_max), 1)):
                with pytest.raises(CallerError, match=f"the prompt has {len(refused.tokens) // 4} tokens"):
                    await one(engine, refused)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"bad_words": ("a",)}, "simulated.*bad_words"),
        ({"guided": Guided(regex="a")}, "simulated.*`replies`"),
        ({"allowed_token_ids": (7,), "logit_bias": ((7, -100.0),)}, "leave no token"),
    ],
)
async def test_what_it_cannot_do(wrong: dict[str, Any], said: str) -> None:
    """It says so, and that it is simulated."""
    async with running() as engine:
        with pytest.raises(CallerError, match=said):
            await answer_to(engine, request(prompt(10), 4, **wrong))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replies": ["a"]}, "model_path"),
        ({"embedding_dimensions": 0}, "embedding_dimensions"),
        ({"replies": [1], "model_path": "x"}, "replies"),
        ({"replies": [{"when": "", "say": "a"}], "model_path": "x"}, "when"),
        ({"replies": [{"when": "a"}], "model_path": "x"}, "say"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError, match=f"engine_args: .*{said}"):
        SimulatedSettings.parse(settings)


async def test_replies_without_a_tokenizer(tmp_path: Path) -> None:
    """The engine does not start, and says what it looked for."""
    engine = SimulatedEngine("sim", dataclasses.replace(FAST, model_path=str(tmp_path), replies=("a",)))
    with pytest.raises(CallerError, match=r"tokenizer\.json"):
        await engine.start(lambda _: None)


async def test_replies(replying: SimulatedSettings, tokenizer: Tokenizer) -> None:
    """Every answer is one of the texts, always the same for the same prompt, and each of them comes."""
    prompts, texts = [prompt(20) for _ in range(40)], []
    async with running(replying) as engine:
        for asked in prompts:
            sent = request(asked, 100, ignore_eos=False, guided=Guided(json_object=True))
            answer, again = await answer_to(engine, sent), await answer_to(engine, sent)
            assert answer.tokens == again.tokens
            assert (answer.finish, answer.tokens[-1]) == ("stop", replying.eos_token)
            texts.append(tokenizer.decode(list(answer.tokens), skip_special_tokens=True))
    assert set(texts) == set(REPLIES)


async def test_a_scripted_conversation(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    """What the prompt says last decides which reply it has; where it says nothing of the kind, the plain one comes."""
    script = [{"when": "Begin.", "say": "one"}, {"when": "one is done", "say": "two"}, "What?"]
    settings = SimulatedSettings.parse({"model_path": str(tiny_checkpoint), "replies": script, "time_scale": 20})

    async def reply(engine: SimulatedEngine, text: str) -> str:
        asked = request(tokens_to_bytes(tokenizer.encode(text).ids), 100, ignore_eos=False)
        return str(tokenizer.decode(list((await answer_to(engine, asked)).tokens), skip_special_tokens=True))

    async with running(settings) as engine:
        assert await reply(engine, "Hello.") == "What?"
        assert await reply(engine, "Begin. Then go on.") == "one"
        assert await reply(engine, "Begin. Then go on. one is done") == "two"
        assert await reply(engine, "one is done. Begin. Then go on.") == "one"


async def test_a_scripted_reply_goes_on_elsewhere(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Broken off behind a text that another reply answers, it is still the same reply."""
    script = [{"when": "Begin.", "say": "it is done, I say"}, {"when": "done", "say": "two"}]
    settings = SimulatedSettings.parse({"model_path": str(tiny_checkpoint), "replies": script, "time_scale": 20})
    asked = tokens_to_bytes(tokenizer.encode("Begin.").ids)
    async with running(settings) as engine:
        whole = (await answer_to(engine, request(asked, 100, ignore_eos=False))).tokens
        for done in range(1, len(whole)):
            sent = request(asked + tokens_to_bytes(whole[:done]), 100, ignore_eos=False)
            assert (await answer_to(engine, sent)).tokens == whole[done:]


async def test_a_script_without_a_plain_reply(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    """A prompt that no reply fits has tokens that are made up, as without replies."""
    script: list[dict[str, str]] = [{"when": "Begin.", "say": "one"}]
    asked = request(tokens_to_bytes(tokenizer.encode("Hello.").ids), 20)
    told = []
    for replies in (script, []):
        settings = SimulatedSettings.parse({"model_path": str(tiny_checkpoint), "replies": replies, "time_scale": 20})
        async with running(settings) as engine:
            told.append((await answer_to(engine, asked)).tokens)
    assert told[0] == told[1]


async def test_a_reply_goes_on_elsewhere(replying: SimulatedSettings) -> None:
    """Wherever it broke off, prompt with what there was gives the rest."""
    async with running(replying) as engine:
        for asked in [prompt(20) for _ in range(6)]:
            whole = (await answer_to(engine, request(asked, 100, ignore_eos=False))).tokens
            for done in range(1, len(whole)):
                sent = request(asked + tokens_to_bytes(whole[:done]), 100, ignore_eos=False)
                assert (await answer_to(engine, sent)).tokens == whole[done:]


async def test_a_reply_obeys_limits(replying: SimulatedSettings) -> None:
    """It ends at max_tokens and at stop tokens, has logprobs, and goes on made up if it may not end."""
    async with running(replying) as engine:
        asked = prompt(20)
        whole = (await answer_to(engine, request(asked, 100, ignore_eos=False))).tokens
        assert (await answer_to(engine, request(asked, 2))).tokens == whole[:2]
        assert (await answer_to(engine, request(asked, 9, stop_token_ids=(whole[1],)))).finish == "stop"
        longer = await answer_to(engine, request(asked, len(whole) + 3))
        assert (longer.tokens[: len(whole)], longer.finish) == (whole, "length")
        outputs = await outputs_of(engine, request(asked, 100, ignore_eos=False, logprobs=1))
        assert tuple(token for output in outputs for token in output.tokens) == whole


def test_logprobs_do_not_depend_on_where() -> None:
    """An answer that goes on elsewhere has the logprobs that it would have had; nothing else changes with them."""
    tokens = list(range(100, 150))

    def logprobs_of(prompt_tokens: list[int], max_tokens: int) -> list[Any]:
        run = Run(SimulatedSettings(eos_every=40))
        run.ask(asked_step("a", prompt_tokens, max_tokens, logprobs=3))
        return [one for _, result in run.log for _, output in result.outputs for one in output.logprobs]

    whole = logprobs_of(tokens, 10)
    plain = Run(SimulatedSettings(eos_every=40)).ask(asked_step("a", tokens, 10))
    assert [one.token for one in whole] == plain
    assert logprobs_of(tokens + plain[:4], 6) == whole[4:]


@pytest.mark.parametrize("vocab", [1, 2, 3, 100])
def test_few_tokens(vocab: int) -> None:
    """No more of the likeliest are told than there are tokens."""
    for one in token_sequence.prompt_logprobs([0, 0, 0, 0, 0, 0], 5, vocab)[1:]:
        assert one is not None
        assert len(one.top) == len({token for token, _ in one.top}) == min(5, vocab)
        assert dict(one.top).get(one.token, one.logprob) == one.logprob


def test_early_ends_among_few() -> None:
    """An end that is too early is avoided if there is another token, and does not end the answer if there is none."""
    settings = SimulatedSettings(eos_every=0)
    bound: dict[str, Any] = {"stop_token_ids": (50, 51), "min_tokens": 5}
    mixed = Run(settings).ask(asked_step("a", [1], 9, allowed_token_ids=(50, 51, 52), **bound))
    assert set(mixed[:5]) == {52}
    ends = Run(settings).ask(asked_step("a", [1], 9, allowed_token_ids=(50, 51), **bound))
    assert len(ends) == 6
