"""`/v1/responses`, stateless: each request brings its whole input."""

from __future__ import annotations

from api.openai.dialect import Dialect
from api.openai.responses.answer import ResponseTeller, refused_stream
from api.openai.responses.body import ResponsesRequest
from api.openai.responses.tool_catalog import left_out
from api.openai.responses.translation import chat_of, named_here

RESPONSES = Dialect(
    body_type=ResponsesRequest,
    chat_of=chat_of,
    teller=ResponseTeller,
    told=lambda error, _request_id: named_here(error),
    left_out=left_out,
    refused_stream=refused_stream,
)
