"""TrtllmProfile: `trtllm-serve` of TensorRT-LLM, with polled cache events or an assumed cache.

Written from its documentation and source. No real server of it was attached.

1. It says its version and the name of its model, and none of its sizes: context, size of the cache and tokenizer are
   given. The trial shows if the size of a block is right.
2. Its cache events are polled, and each is given once: this worker must be their only reader. Numbers that are missing
   are a gap, and numbers that return a new start.
3. Its `/metrics` give each number once, too, and are left to the operator. So the load is that of our own requests.
4. Its completions take no salt, and its events show none: a request with a salt is refused. The same holds for
   adapters. Requests of others under either look like plain ones.
5. It has several data-parallel ranks behind one API that cannot choose one: such a server is refused.
6. It sees a hang-up within a second, for it looks once a second.
"""

from __future__ import annotations

import time
from contextlib import suppress

from actors.engines.attached.completion_call import PATH
from actors.engines.attached.server_discovery import (
    ASK_TIMEOUT_S,
    OR_ASSUMED,
    ask_certainly,
    ask_models,
    certain_size,
    check_tokenizer,
    choose_model,
    choose_rank,
)
from actors.engines.attached.server_profile import ASSUMED, ServerCall, ServerFacts, ServerOptions, ServerProfile
from actors.engines.attached.trtllm_call import trtllm_body
from actors.engines.kv_events.kv_batch import KvBatchReader
from actors.engines.kv_events.kv_endpoints import PolledEvents
from actors.engines.kv_events.trtllm_event_reader import TrtllmEventReader
from actors.transport.server_client import AnswerTooLong, ServerClient
from core.errors import CallerError
from core.generation import GenerateRequest

KIND = "TensorRT-LLM"
BLOCK_SIZE = 32
"""Its own default of tokens in a block."""
EVENTS_PATH = "/kv_cache_events"
ANSWER_MAX_S = 1.0
"""Bound on an answer without events. Older servers wait for 2 s without one, so that a busy one never answers."""
EVENT_SETTINGS = "`kv_cache_config: {enable_block_reuse: true, event_buffer_max_size: 65536}` in its --config file"
"""Settings with which a server tells its cache."""


class TrtllmProfile(ServerProfile):
    """One `trtllm-serve`."""

    health_path = "/health"
    keeps_salts_apart: bool | None = False
    serves_adapters = False

    async def find_facts(self, client: ServerClient, options: ServerOptions) -> ServerFacts:
        """As of `ServerProfile`."""
        found = await ask_certainly(client, "/version", KIND)
        model = choose_model(client, options.model, await ask_models(client, KIND))
        name = str(model["id"])
        choose_rank(client, options.rank, 1)
        return ServerFacts(
            engine=f"tensorrt_llm {found.get('version') if isinstance(found, dict) else '?'}",
            model=name,
            root=name,
            context_max=certain_size(client, options.context_max, "long a prompt may be", "--context"),
            block_size=options.block_size or BLOCK_SIZE,
            capacity_blocks=certain_size(client, options.cache_blocks, "many blocks its cache has", "--cache-blocks"),
            tokenizer=await check_tokenizer(client, name, options.tokenizer),
            endpoints=None if options.cache == ASSUMED else await _polled(client),
            start="",
        )

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:  # noqa: ARG002 (has one rank, and other priorities)
        """As of `ServerProfile`."""
        return ServerCall(PATH, trtllm_body(request, facts.model, facts.context_max), {})

    def batch_reader(self, facts: ServerFacts) -> KvBatchReader:
        """As of `ServerProfile`."""
        return TrtllmEventReader(facts.block_size)


async def _polled(client: ServerClient) -> PolledEvents:
    """The path, which answers at once. Events until now are lost: they do not say what the cache held before them."""
    with suppress(AnswerTooLong):  # all that it kept so far
        await client.post(EVENTS_PATH, b"", ASK_TIMEOUT_S)
    begun_s = time.monotonic()
    reply = await client.post(EVENTS_PATH, b"", ASK_TIMEOUT_S)
    if reply.status != 200:
        raise CallerError(
            f"{client.address} tells no cache events (POST {EVENTS_PATH} gives {reply.status}): start it with "
            f"{EVENT_SETTINGS}, {OR_ASSUMED}"
        )
    if time.monotonic() - begun_s > ANSWER_MAX_S:
        raise CallerError(
            f"{client.address} waits for cache events before it answers, as older versions do: take a newer one, "
            f"{OR_ASSUMED}"
        )
    return PolledEvents(EVENTS_PATH)
