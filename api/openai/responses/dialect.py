"""`/v1/responses`, stateless: each request brings its whole input."""

from __future__ import annotations

from functools import partial

from api.openai.dialect import Dialect
from api.openai.requests.accepted import Accepted
from api.openai.responses.answer import ResponseTeller, refused_stream
from api.openai.responses.body import ResponsesRequest
from api.openai.responses.reasoning_seal import ReasoningSeal
from api.openai.responses.sealed_items import opened
from api.openai.responses.tool_catalog import left_out
from api.openai.responses.translation import chat_of, named_here
from api.server.caller import effective_tenant
from core.clock import Clock


def responses_dialect(seal: ReasoningSeal) -> Dialect[ResponsesRequest]:
    """The dialect whose reasoning is sealed so."""

    def teller(asked: ResponsesRequest, accepted: Accepted, request_id: str, clock: Clock) -> ResponseTeller:
        tenant = effective_tenant(accepted.choices[0].request.tenant)
        return ResponseTeller(asked, accepted, request_id, clock, partial(seal.seal, tenant=tenant))

    return Dialect(
        body_type=ResponsesRequest,
        chat_of=chat_of,
        teller=teller,
        told=lambda error, _request_id: named_here(error),
        opened=lambda asked, tenant, request_id: opened(asked, seal, tenant, request_id),
        left_out=left_out,
        refused_stream=refused_stream,
    )
