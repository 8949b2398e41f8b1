"""The surface: every route of the API, what it takes, and an example that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from api.anthropic.body import CountRequest, MessagesRequest
from api.description import told
from api.openai.further.embedding_inputs import EmbeddingRequest
from api.openai.further.tokenizing import DetokenizeRequest, TokenizeRequest
from api.openai.refusal import OVERLOADED
from api.openai.requests.types import ChatRequest, CompletionRequest
from api.openai.responses.body import ResponsesRequest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path."""

    path: str
    name: str
    """Unique: clients that are generated call it so."""
    summary: str
    body: type[msgspec.Struct] | None = None
    """None: GET; else POST with this body."""
    example: Json | None = None
    answer: Json
    """The JSON schema of the answer that is not streamed."""
    streams: bool = False
    """Whether `"stream": true` is answered with server-sent events."""
    generates: bool = False
    """Whether it goes to a worker: the headers about tenant, priority and deadline count."""
    statuses: tuple[int, ...] = ()
    """Of errors that it has beside those that all have."""
    open: bool = False
    """Whether it needs no API key."""

    @property
    def method(self) -> str:
        """In small letters, as the description has it."""
        return "get" if self.body is None else "post"


_ASKED = [{"role": "user", "content": "Hello"}]
_GENERATES = (404, 429, 503, 504)
_MESSAGES = (404, 429, 504, OVERLOADED)

SURFACE = (
    Operation(
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="Answer a chat; OpenAI's API with vLLM's extras.",
        body=ChatRequest,
        example={"model": "tiny", "messages": _ASKED, "max_tokens": 16},
        answer=told.CHAT,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/completions",
        name="createCompletion",
        summary="Go on with a text or with tokens; OpenAI's API with vLLM's extras.",
        body=CompletionRequest,
        example={"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16},
        answer=told.COMPLETION,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/responses",
        name="createResponse",
        summary="Answer an input; OpenAI's Responses API, nothing stored.",
        body=ResponsesRequest,
        example={"model": "tiny", "input": "Hello", "max_output_tokens": 16},
        answer=told.RESPONSE,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/messages",
        name="createMessage",
        summary="Answer a chat; Anthropic's API, errors in its shape.",
        body=MessagesRequest,
        example={"model": "tiny", "messages": _ASKED, "max_tokens": 16},
        answer=told.MESSAGE,
        streams=True,
        generates=True,
        statuses=_MESSAGES,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        name="countMessageTokens",
        summary="Count the tokens of a chat; Anthropic's API.",
        body=CountRequest,
        example={"model": "tiny", "messages": _ASKED},
        answer=told.COUNT,
        statuses=(404, OVERLOADED),
    ),
    Operation(
        path="/v1/embeddings",
        name="createEmbedding",
        summary="Embed texts, of a model that can; OpenAI's API.",
        body=EmbeddingRequest,
        example={"model": "tiny", "input": ["Hello", "world"]},
        answer=told.EMBEDDINGS,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/tokenize",
        name="tokenize",
        summary="The tokens of a text or a chat; vLLM's API.",
        body=TokenizeRequest,
        example={"model": "tiny", "prompt": "Hello"},
        answer=told.TOKENS,
        statuses=(404, 503),
    ),
    Operation(
        path="/detokenize",
        name="detokenize",
        summary="The text of tokens; vLLM's API.",
        body=DetokenizeRequest,
        example={"model": "tiny", "tokens": [1, 2, 3]},
        answer=told.TEXT,
        statuses=(404, 503),
    ),
    Operation(path="/v1/models", name="listModels", summary="The models that are served.", answer=told.MODELS),
    Operation(
        path="/v1/models/{model}",
        name="retrieveModel",
        summary="One model; slashes in its name may stand as they are.",
        answer=told.MODEL,
        statuses=(404, 503),
    ),
    Operation(path="/version", name="showVersion", summary="The version of Contrail.", answer=told.VERSION),
    Operation(
        path="/health",
        name="showHealth",
        summary="Whether requests are served; 503, in the same shape, if not.",
        answer=told.HEALTH,
        open=True,
    ),
    Operation(
        path="/openapi.json", name="showDescription", summary="This description.", answer={"type": "object"}, open=True
    ),
)
"""All of it but the debugging page, which is for people and keeps its own form."""
