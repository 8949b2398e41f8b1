"""`/v1/responses`, stateless: each request brings its whole input."""

from __future__ import annotations

from functools import partial

from api.openai.generation_route import ApiAdapter
from api.openai.request.prepared_request import PreparedRequest
from api.responses.reasoning_seal import ReasoningSeal, unseal_reasoning
from api.responses.responses_encoder import ResponsesEncoder, refused_stream
from api.responses.responses_request import rename_parameter, to_chat_request
from api.responses.responses_types import ResponsesRequest
from api.responses.tool_catalog import omitted_tools
from api.server.caller import effective_tenant
from core.clock import Clock


def responses_adapter(seal: ReasoningSeal) -> ApiAdapter[ResponsesRequest]:
    """The adapter whose reasoning is sealed so."""

    def encoder(body: ResponsesRequest, prepared: PreparedRequest, request_id: str, clock: Clock) -> ResponsesEncoder:
        tenant = effective_tenant(prepared.choices[0].request.tenant)
        return ResponsesEncoder(body, prepared, request_id, clock, partial(seal.seal, tenant=tenant))

    return ApiAdapter(
        body_type=ResponsesRequest,
        to_request=to_chat_request,
        encoder=encoder,
        to_error=lambda error, _request_id: rename_parameter(error),
        unseal_reasoning=lambda body, tenant, request_id: unseal_reasoning(body, seal, tenant, request_id),
        omitted_tools=omitted_tools,
        refused_stream=refused_stream,
    )
