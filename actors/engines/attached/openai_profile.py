"""OpenaiProfile: any server that takes token ids at `/v1/completions` and returns them (`return_token_ids`).

It says neither its cache nor its load. So its cache is assumed, its requests are those sent from here, and its
tokenizer and the size of its cache are given. A request with a salt is refused: such a server may share blocks in spite
of it.
"""

from __future__ import annotations

from actors.engines.attached.completion_call import PATH, completion_body
from actors.engines.attached.server_discovery import (
    ask_models,
    certain_size,
    check_tokenizer,
    choose_model,
    choose_rank,
    context_of,
)
from actors.engines.attached.server_profile import ASSUMED, ServerCall, ServerFacts, ServerOptions, ServerProfile
from actors.transport.server_client import ServerClient
from core.errors import CallerError
from core.generation import GenerateRequest

KIND = "OpenAI-compatible"
BLOCK_SIZE = 16
"""Tokens of a block, unless told."""


class OpenaiProfile(ServerProfile):
    """One server of no known kind."""

    health_path = "/v1/models"
    keeps_salts_apart: bool | None = False
    serves_adapters = False

    async def find_facts(self, client: ServerClient, options: ServerOptions) -> ServerFacts:
        """As of `ServerProfile`."""
        if options.cache != ASSUMED:
            raise CallerError(
                f"{client.address} tells no cache events that are known: attach it with `cache: assumed` "
                "(--cache assumed)"
            )
        model = choose_model(client, options.model, await ask_models(client, KIND))
        name, root = str(model["id"]), str(model.get("root") or "")
        context = options.context_max or context_of(model)
        context_max = certain_size(client, context, "long a prompt may be", "--context")
        cache_blocks = certain_size(client, options.cache_blocks, "many blocks its cache has", "--cache-blocks")
        choose_rank(client, options.rank, 1)
        return ServerFacts(
            engine=f"openai {model.get('owned_by') or 'server'}",
            model=name,
            root=root,
            context_max=context_max,
            block_size=options.block_size or BLOCK_SIZE,
            capacity_blocks=cache_blocks,
            tokenizer=await check_tokenizer(client, name, options.tokenizer or root),
            endpoints=None,
            start="",
        )

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:  # noqa: ARG002 (has one rank)
        """As of `ServerProfile`."""
        return ServerCall(PATH, completion_body(request, facts.model, facts.context_max, priorities=priorities), {})
