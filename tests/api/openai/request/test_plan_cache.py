"""What requests say beside their prompts is worked out once for all that say the same, and taken for no other's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.config.api_settings import ApiSettings
from api.openai.chat_encoder import ChatEncoder
from api.openai.completion_encoder import CompletionEncoder
from api.openai.request.plan_cache import KEPT_MAX, KEY_BYTES_MAX, RequestPlanCache, body_without_prompt
from api.openai.request.preprocessor import Preprocessor
from api.openai.request.validation import check
from api.openai.response_encoder import OpenAIEncoder
from api.openai.types.deltas import ChoiceDelta, Delta
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModels
from api.server.errors import ApiError
from tests.api.scripted import ScriptedBackend

Kind = type[ChatRequest | CompletionRequest]


def body(prompt: str = "hi", **fields: Any) -> bytes:
    """One that both kinds of request can be read from."""
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": prompt}], **fields}).encode()


def completion(prompt: Any = "hi", **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": prompt, **fields}).encode()


class Asking:
    """A preprocessor, asked in the way of the routes."""

    def __init__(self) -> None:
        self.preprocessor = Preprocessor(ScriptedBackend(), ApiSettings(), LoadedModels())

    async def __call__(self, kind: Kind, raw: bytes) -> Any:
        parameters = msgspec.json.decode(raw, type=kind)
        return await self.preprocessor.prepare(parameters, {}, "id", len(raw), body_without_prompt(kind, raw))


def test_what_stands_beside_a_prompt() -> None:
    """All but the prompt; nothing if that could be taken for something else, or is too long to be kept."""
    assert (
        body_without_prompt(ChatRequest, body("a", n=2)) == body_without_prompt(ChatRequest, body("longer", n=2)) != b""
    )
    assert body_without_prompt(ChatRequest, body(n=2)) != body_without_prompt(ChatRequest, body(n=3))
    assert body_without_prompt(CompletionRequest, completion("a")) == body_without_prompt(
        CompletionRequest, completion([1, 2])
    )
    assert body_without_prompt(CompletionRequest, completion("tiny")) == b""
    assert body_without_prompt(ChatRequest, body(user="x" * KEY_BYTES_MAX)) == b""


texts = st.sampled_from(["", "[]", "[1]", '"', "a", '","n":2,"user":"', '[{"role":"user","content":"a"}]'])
messages = st.sampled_from(['[{"role":"user","content":"a"}]', '[{"role":"user","content":"[]"}]', "[]", "[ ]"])
names = st.sampled_from(["user", "us[]er", "cache_salt", "n", "extra"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Mostly alike; with the prompt before, between and behind other fields, and names that hold one."""
    fields = [f'"messages":{draw(messages)}', '"model":"m"']
    for name in draw(st.lists(names, max_size=2)):
        value = draw(st.integers(1, 2)) if name == "n" else draw(texts)
        fields.append(f"{json.dumps(name)}:{json.dumps(value)}")
    return ("{" + ",".join(draw(st.permutations(fields))) + "}").encode()


@given(bodies(), bodies())
@example(b'{"user":"[]","messages":[],"model":"m"}', b'{"us[]er":"","messages":[],"model":"m"}')
def test_equal_beside_their_prompts_is_equal_in_all_else(one: bytes, other: bytes) -> None:
    """Whatever a client writes into its fields."""
    if body_without_prompt(ChatRequest, one) != body_without_prompt(ChatRequest, other) or not body_without_prompt(
        ChatRequest, one
    ):
        return
    read = [msgspec.json.decode(raw, type=ChatRequest) for raw in (one, other)]
    first, second = (msgspec.structs.replace(request, messages=[]) for request in read)
    assert first == second


async def test_the_next_one_that_says_the_same_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that says something else let through unchecked."""
    checked: list[Any] = []

    def noted(parameters: Any) -> None:
        checked.append(parameters)
        check(parameters)

    monkeypatch.setattr("api.openai.request.preprocessor.check", noted)
    ask = Asking()
    first = await ask(ChatRequest, body("a", max_tokens=3, stop="x"))
    second = await ask(ChatRequest, body("b b", max_tokens=3, stop="x"))
    assert len(checked) == 1
    assert first.choices[0].request.sampling == second.choices[0].request.sampling
    assert first.choices[0].request.tokens != second.choices[0].request.tokens
    assert first.choices[0].transcript is not second.choices[0].transcript
    assert (await ask(ChatRequest, body("a", max_tokens=4, stop="x"))).choices[0].request.sampling.max_tokens == 4
    for _ in range(2):
        with pytest.raises(ApiError, match="stream_options"):
            await ask(ChatRequest, body(stream_options={"include_usage": True}))
    assert len(checked) == 4


async def test_what_depends_on_the_prompt_is_looked_at_each_time() -> None:
    """Its length, and whether there is one at all."""
    ask = Asking()
    assert (await ask(CompletionRequest, completion("a"))).choices
    with pytest.raises(ApiError, match="must not be empty"):
        await ask(CompletionRequest, completion(""))
    rooms = [(await ask(ChatRequest, body("word " * n))).choices[0].request.sampling.max_tokens for n in (1, 9)]
    assert rooms[0] > rooms[1], "what is left of the context"
    with pytest.raises(ApiError, match="messages"):
        await ask(ChatRequest, b'{"model":"tiny","messages":[]}')


async def test_a_model_with_another_tokenizer_has_plans_of_its_own() -> None:
    """Its workers were replaced by others under the same name."""
    ask = Asking()
    before = await ask(ChatRequest, body())
    ask.preprocessor._models = LoadedModels()
    after = await ask(ChatRequest, body())
    assert before.options.texts is not after.options.texts


async def test_plans_are_bounded() -> None:
    """Of clients that say something new with every request."""
    ask = Asking()
    for number in range(KEPT_MAX + 1):
        await ask(ChatRequest, body(seed=number))
    kept = ask.preprocessor._plans
    assert isinstance(kept, RequestPlanCache)
    assert len(kept._kept) == 1


@pytest.mark.parametrize(("kind", "encoder"), [(ChatRequest, ChatEncoder), (CompletionRequest, CompletionEncoder)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_text_is_what_any_delta_would_be(kind: Kind, encoder: type[OpenAIEncoder], stream: bool) -> None:
    """The template says the same as what is put together piece by piece."""
    raw = body(stream=stream) if kind is ChatRequest else completion(stream=stream)
    prepared = await Asking()(kind, raw)
    assert prepared.plain
    pieces = []
    for as_text in (False, True):
        made = encoder("id", 1, prepared)
        text = 'a "text"\n'
        piece = made.encode_text(text) if as_text else made.encode_delta(ChoiceDelta(0, Delta(text)))
        assert bool(piece) is stream
        pieces.append(piece if stream else made.whole())
    assert pieces[0] == pieces[1]
