"""OpenaiProfile: any server that takes token ids at `/v1/completions` and returns them (`return_token_ids`).

It says neither its cache nor its load. So its cache is assumed, its requests are those sent from here, and its
tokenizer and the size of its cache are given. A request with a salt is refused: such a server may share blocks in spite
of it.
"""

from __future__ import annotations

from actors.engines.attached.completion_call import PATH, CompletionReader, completion_body
from actors.engines.attached.server_discovery import ask_models, check_tokenizer, choose_model, choose_rank, context_of
from actors.engines.attached.server_profile import (
    ASSUMED,
    AnswerReader,
    ServerCall,
    ServerFacts,
    ServerNumbers,
    ServerOptions,
)
from actors.engines.kv_events.kv_batch import KvBatchReader
from actors.engines.kv_events.kv_event_reader import KvEventReader
from actors.transport.server_client import ServerClient
from core.errors import CallerError
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId

KIND = "OpenAI-compatible"
BLOCK_SIZE = 16
"""Tokens of a block, unless told."""


class OpenaiProfile:
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
        context_max = options.context_max or context_of(model)
        if not context_max:
            raise CallerError(f"{client.address} does not say how long a prompt may be: give it, --context")
        if not options.cache_blocks:
            raise CallerError(f"{client.address} does not say how many blocks its cache has: give it, --cache-blocks")
        choose_rank(client, options.rank, 1)
        return ServerFacts(
            engine=f"openai {model.get('owned_by') or 'server'}",
            model=name,
            root=root,
            context_max=context_max,
            block_size=options.block_size or BLOCK_SIZE,
            capacity_blocks=options.cache_blocks,
            tokenizer=await check_tokenizer(client, name, options.tokenizer or root),
            endpoints=None,
            start="",
        )

    async def read_numbers(self, client: ServerClient, rank: int) -> ServerNumbers | None:  # noqa: ARG002 (tells none)
        """As of `ServerProfile`."""
        return None

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:  # noqa: ARG002 (has one rank)
        """As of `ServerProfile`."""
        return ServerCall(PATH, completion_body(request, facts.model, facts.context_max, priorities=priorities), {})

    def abort(self, request: RequestId) -> ServerCall | None:  # noqa: ARG002 (hanging up does)
        """As of `ServerProfile`."""
        return None

    def answer_reader(self, sampling: Sampling) -> AnswerReader:
        """As of `ServerProfile`."""
        return CompletionReader(sampling)

    def batch_reader(self) -> KvBatchReader:
        """As of `ServerProfile`; never asked, as there are no events."""
        return KvEventReader()
