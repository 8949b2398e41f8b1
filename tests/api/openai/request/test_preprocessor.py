"""What a request becomes before a worker hears of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from api.openai.request.body_reader import BodyIntake
from api.openai.request.choice import Choice, ChoiceDelta
from api.openai.request.preprocessor import Preprocessor
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModels
from api.server.limits import ApiSettings
from core.generation import Output
from tests.api.conftest import Api
from tests.api.scripted import ScriptedBackend, spoken

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({}, True),
        ({"stream": True, "stream_options": {"include_usage": True}, "stop": "x", "n": 1, "seed": 1}, True),
        ({"logprobs": 0}, False),
        ({"n": 2}, False),
        ({"return_token_ids": True}, False),
        ({"prompt_logprobs": 0}, False),
        ({"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}, False),
    ],
)
async def test_what_is_plain_text_is_known(
    kind: type[ChatRequest | CompletionRequest], fields: dict[str, Any], plain: bool
) -> None:
    """Only then do tokens pass without steps, which is what makes them cheap."""
    if kind is ChatRequest and "logprobs" in fields:
        fields = {"logprobs": True}
    models = LoadedModels()
    preprocessor = Preprocessor(ScriptedBackend(), ApiSettings(), models, BodyIntake(ApiSettings(), models.pool))
    parameters = msgspec.json.decode(json.dumps(BODY | fields), type=kind)
    prepared = await preprocessor.prepare(parameters, {}, "id", 100)
    assert prepared.is_plain_text is plain
    assert len(prepared.choices) == fields.get("n", 1)


async def test_plain_text_makes_no_deltas(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    """Only the first output of a stream and the last of all do: what comes between is text alone."""
    made: list[int] = []
    delta = Choice.make_delta

    def noted(self: Choice, text: str, output: Output) -> ChoiceDelta:
        made.append(self.index)
        return delta(self, text, output)

    monkeypatch.setattr(Choice, "make_delta", noted)
    api.backend.script = spoken("one", " two", " three")
    for fields, deltas in (({"stream": True}, 2), ({}, 1), ({"n": 2}, 10)):
        made.clear()
        answer = await api.http.post("/v1/completions", json=BODY | fields)
        assert "three" in answer.text
        assert len(made) == deltas
