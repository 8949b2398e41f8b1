"""Guided answers, words kept out and embeddings with the real vLLM; logprobs and biases are in the contract."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from actors.engines.engine import Engine
from actors.engines.vllm import vllm_calls
from actors.engines.vllm.vllm_args import guide_behind_reasoning
from core.errors import CallerError, EngineDead
from core.generation import TASK_EMBED, GenerateRequest, Guided, Sampling
from core.ids import RequestId
from core.models import GenerationFailed
from tests.contracts.engine import answer_to, prompt, request, until_idle
from tests.contracts.engine_sampling import SamplingContract, outputs_of
from tests.fixtures.engines import RecordedEngine

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


class TestVllmSampling(SamplingContract):
    @pytest.fixture
    async def engine(self, vllm_engine: RecordedEngine) -> AsyncIterator[Engine]:
        yield vllm_engine


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))


async def text_of(engine: Engine, tokenizer: Tokenizer, guided: Guided, max_tokens: int = 500) -> str:
    """A random but repeatable answer, which must have ended by itself."""
    asked = request(prompt(10), max_tokens, guided=guided, temperature=0.8, seed=3, ignore_eos=False)
    answer = await answer_to(engine, asked)
    assert answer.finish == "stop"
    return str(tokenizer.decode(list(answer.tokens)))


@pytest.mark.parametrize(
    ("guided", "pattern"),
    [
        (Guided(regex="[0-9]{3}-[a-c]{2,5}z"), r"[0-9]{3}-[a-c]{2,5}z"),
        (Guided(choices=("yes", "no", "per haps")), r"yes|no|per haps"),
        (Guided(grammar='root ::= "a" root | "b"'), r"a*b"),
    ],
)
async def test_guided(vllm_engine: RecordedEngine, tokenizer: Tokenizer, guided: Guided, pattern: str) -> None:
    """The answer is of the form asked for, and ends when it is whole."""
    assert re.fullmatch(pattern, await text_of(vllm_engine, tokenizer, guided))


async def test_guided_json(vllm_engine: RecordedEngine, tokenizer: Tokenizer) -> None:
    """The same of JSON: by a schema, and any object."""
    found = json.loads(await text_of(vllm_engine, tokenizer, Guided(json_schema=SCHEMA), 2000))
    assert found["b"] in ("x", "y")
    assert 0 <= found["a"] <= 9
    asked = request(prompt(10), 60, guided=Guided(json_object=True), ignore_eos=False)
    text = tokenizer.decode(list((await answer_to(vllm_engine, asked)).tokens))
    assert text.lstrip().startswith("{")


@pytest.mark.parametrize(
    "guided",
    [
        Guided(json_schema='{"type":'),
        Guided(json_schema='{"type": "nope"}'),
        Guided(json_schema=""),
        Guided(json_schema="3"),
        Guided(json_schema='{"$ref": "#/nowhere"}'),
        Guided(json_schema='{"a":' * 80 + "1" + "}" * 80),
        Guided(regex="([a"),
        Guided(regex="a\0b"),
        Guided(grammar="root := "),
        Guided(grammar=""),
        Guided(),
        Guided(json_object=True, regex="a"),
    ],
)
async def test_wrong_guides(vllm_engine: RecordedEngine, guided: Guided) -> None:
    """A guide that is none is the caller's error in one sentence, and the engine goes on."""
    with pytest.raises(CallerError, match=r"^[^\n]{10,400}$"):
        await answer_to(vllm_engine, request(prompt(10), 4, guided=guided))
    await vllm_engine.check()


async def test_no_token_fits(vllm_engine: RecordedEngine) -> None:
    """A guide and allowed tokens that contradict each other end that request alone."""
    beside = asyncio.ensure_future(answer_to(vllm_engine, request(prompt(10), 50)))
    with pytest.raises(CallerError, match="allowed_token_ids"):
        await answer_to(vllm_engine, request(prompt(10), 4, guided=Guided(regex="[0-9]+"), allowed_token_ids=(300,)))
    assert (await beside).finish == "length"


async def test_a_guide_is_read_beside_the_event_loop(
    vllm_engine: RecordedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one may take seconds; what is not guided is looked at at once."""
    processor, threads = vllm_engine._llm.input_processor, list[threading.Thread]()
    validate = processor._validate_params

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return validate(*given)

    monkeypatch.setattr(processor, "_validate_params", watched)
    properties = {f"p{i}": {"enum": [f"{i}.{j}" for j in range(50)]} for i in range(100)}
    schema = json.dumps({"type": "object", "properties": properties})
    assert (await answer_to(vllm_engine, request(prompt(10), 4, guided=Guided(json_schema=schema)))).finish == "length"
    await answer_to(vllm_engine, request(prompt(10), 4))
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


async def test_abort_of_a_guided_answer(vllm_engine: RecordedEngine) -> None:
    """It ends within a step, logprobs and all."""
    asked = request(prompt(40), 3000, guided=Guided(regex="[a-z]{3000}"), logprobs=3)
    stream = vllm_engine.generate(asked)
    assert (await anext(stream)).logprobs
    await stream.aclose()  # type: ignore[attr-defined]
    await until_idle(vllm_engine)
    assert vllm_engine.load().blocks_used == 0


async def test_bad_words(vllm_engine: RecordedEngine, tokenizer: Tokenizer) -> None:
    """A word that the greedy answer has is not in it when it is forbidden; one that is none is refused."""

    def is_word(token: int) -> bool:
        """Whether its text is this token again: a word is forbidden as the tokens that spell it."""
        text = tokenizer.decode([token])
        spelt = tokenizer.encode(text, add_special_tokens=False).ids
        return len(text) > 1 and text == text.strip() and spelt == [token]

    asked = prompt(10)
    free = await answer_to(vllm_engine, request(asked, 64))
    token = next(filter(is_word, free.tokens))
    word = tokenizer.decode([token])
    without = await answer_to(vllm_engine, request(asked, 64, bad_words=(word,)))
    assert token in free.tokens
    assert token not in without.tokens
    with pytest.raises(CallerError, match="bad_words"):
        await answer_to(vllm_engine, request(asked, 8, bad_words=("",)))


async def test_logprobs_are_vllms_own(vllm_engine: RecordedEngine) -> None:
    """A random answer's tokens are told as vLLM ranks them, also those that are not among the likeliest."""
    outputs = await outputs_of(vllm_engine, request(prompt(10), 40, logprobs=2, temperature=2.0, seed=1))
    told = [one for output in outputs for one in output.logprobs]
    assert any(one.token not in dict(one.top) for one in told)
    assert all(one.token in dict(one.top) or one.logprob <= one.top[-1][1] for one in told)


async def test_makes_no_embeddings(vllm_engine: RecordedEngine) -> None:
    """An engine that generates says so, and the other way round."""
    embed = GenerateRequest(id=RequestId("e"), tokens=prompt(5), sampling=Sampling(max_tokens=1), task=TASK_EMBED)
    with pytest.raises(CallerError, match="runner: pooling"):
        await answer_to(vllm_engine, embed)
    pooling = SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(runner_type="pooling")))
    with pytest.raises(CallerError, match="only makes embeddings"):
        vllm_calls.arguments(request(prompt(5)), vllm_engine._vllm, pooling, None)


@pytest.mark.parametrize("guided", [None, Guided(regex="a")])
@pytest.mark.parametrize(
    ("finish", "unguided", "by_guide"),
    [("abort", EngineDead, EngineDead), ("error", GenerationFailed, CallerError)],
)
def test_broken_off(guided: Guided | None, finish: str, unguided: type[Exception], by_guide: type[Exception]) -> None:
    """What the engine aborts is no answer's end, guided or not: another worker goes on with it."""
    result = SimpleNamespace(outputs=[SimpleNamespace(finish_reason=finish)])
    with pytest.raises(by_guide if guided else unguided):
        vllm_calls.output(result, Sampling(max_tokens=1, guided=guided), first=False)


def test_embedding_from_vllm() -> None:
    """Numbers of any kind become little-endian float32."""
    torch = pytest.importorskip("torch")
    data = torch.tensor([0.5, -0.25], dtype=torch.bfloat16)
    made = vllm_calls.embedding(SimpleNamespace(outputs=SimpleNamespace(data=data), num_cached_tokens=32))
    assert np.frombuffer(made.embedding, "<f4").tolist() == [0.5, -0.25]
    assert (made.finish, made.cached_tokens, made.tokens) == ("stop", 32, ())


def test_a_reasoning_parser_is_tried_first(vllm_engine: RecordedEngine) -> None:
    """One that does not fit the tokenizer would end the engine at the first guided request."""
    model = vllm_engine._llm.vllm_config.model_config

    def guided_by(own: str, name: str) -> Any:
        outputs = SimpleNamespace(reasoning_parser=own)
        guide_behind_reasoning(SimpleNamespace(structured_outputs_config=outputs, model_config=model), name)
        return outputs.reasoning_parser

    assert guided_by("", "") == ""
    assert guided_by("", "qwen3") == "qwen3"
    assert guided_by("", "deepseek_r1") == guided_by("", "nobody") == ""
    with pytest.raises(CallerError, match="deepseek_r1 does not fit"):
        guided_by("deepseek_r1", "")
