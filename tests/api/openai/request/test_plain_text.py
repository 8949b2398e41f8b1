"""A plain text in an answer, and bounds that follow from a prompt."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from api.openai.openai_encoder import ChatEncoder, CompletionEncoder, OpenAIEncoder
from api.openai.request.body_reader import BodyIntake
from api.openai.request.choice import ChoiceDelta
from api.openai.request.preprocessor import Preprocessor
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModels
from api.parsers.output_parser import Delta
from api.server.errors import ApiError
from api.server.limits import ApiSettings
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
        models = LoadedModels()
        self.preprocessor = Preprocessor(
            ScriptedBackend(), ApiSettings(), models, BodyIntake(ApiSettings(), models.pool)
        )

    async def __call__(self, kind: Kind, raw: bytes) -> Any:
        parameters = msgspec.json.decode(raw, type=kind)
        return await self.preprocessor.prepare(parameters, {}, "id", len(raw))


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


@pytest.mark.parametrize(("kind", "encoder"), [(ChatRequest, ChatEncoder), (CompletionRequest, CompletionEncoder)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_text_is_what_any_delta_would_be(kind: Kind, encoder: type[OpenAIEncoder], stream: bool) -> None:
    """The template says the same as what is put together piece by piece."""
    raw = body(stream=stream) if kind is ChatRequest else completion(stream=stream)
    prepared = await Asking()(kind, raw)
    assert prepared.is_plain_text
    pieces = []
    for as_text in (False, True):
        made = encoder("id", 1, prepared)
        text = 'a "text"\n'
        piece = made.encode_text(text) if as_text else made.encode_delta(ChoiceDelta(0, Delta(text)))
        assert bool(piece) is stream
        pieces.append(piece if stream else made.encode_whole())
    assert pieces[0] == pieces[1]
