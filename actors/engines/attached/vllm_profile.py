"""VllmProfile: `vllm serve`, of 0.32 or later.

1. It says in `/kv_event_sources` where the cache events of each of its ranks are, and in `/metrics` the sizes of its
   cache, its load and the start of its process. There is one process behind the URL, or it is refused.
2. A server without cache events, or an older one, is served if its cache is to be assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from actors.engines.attached.completion_call import PATH, completion_body
from actors.engines.attached.prometheus_samples import SampleReader
from actors.engines.attached.server_discovery import (
    ASK_TIMEOUT_S,
    OR_ASSUMED,
    PROBES,
    ask,
    ask_certainly,
    ask_models,
    certain_context,
    check_tokenizer,
    choose_model,
    choose_rank,
    reachable,
    several_servers,
)
from actors.engines.attached.server_profile import (
    ASSUMED,
    ServerCall,
    ServerFacts,
    ServerNumbers,
    ServerOptions,
    ServerProfile,
)
from actors.engines.kv_events.kv_endpoints import KvEndpoints
from actors.transport.server_client import ServerClient
from core.errors import CallerError, PeerError, Unavailable
from core.generation import GenerateRequest

KIND = "vLLM"
RANK_HEADER = "X-data-parallel-rank"
"""By it a server gives a request to one of its ranks."""
EVENT_FLAGS = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\''
)
"""Flags with which a server tells its cache."""
_START, _CACHE = "process_start_time_seconds", "vllm:cache_config_info"
_RUNNING, _WAITING, _SHARE = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
_STEPS = "vllm:iteration_tokens_total_count"
_SAMPLES = SampleReader(_START, _CACHE, _RUNNING, _WAITING, _SHARE, _STEPS)


class VllmMetrics(NamedTuple):
    """One reading of one rank."""

    numbers: ServerNumbers
    cache: Mapping[str, str]
    """The rank's configuration of its cache, by vLLM's names."""


def read_metrics(text: bytes, rank: int = 0) -> VllmMetrics:
    """The reading in the text of `/metrics`; PeerError if it is none of a vLLM server."""
    numbers: dict[str, float] = {}
    cache: Mapping[str, str] = {}
    own = str(rank)
    for name, labels, value in _SAMPLES.read(text):
        if labels.get("engine", own) != own:
            continue
        numbers[name] = value
        if name == _CACHE:
            cache = labels
    try:
        read = ServerNumbers(
            start=str(numbers[_START]) if _START in numbers else None,
            running=round(numbers[_RUNNING]),
            waiting=round(numbers[_WAITING]),
            cache_share=numbers[_SHARE],
            steps=round(numbers.get(_STEPS, 0.0)),
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise PeerError(f"its /metrics lack what vLLM's have ({error}): leave out --disable-log-stats") from error
    return VllmMetrics(read, cache)


class VllmProfile(ServerProfile):
    """One `vllm serve`."""

    health_path = "/health"
    keeps_salts_apart: bool | None = True
    serves_adapters = True

    async def find_facts(self, client: ServerClient, options: ServerOptions) -> ServerFacts:
        """As of `ServerProfile`."""
        version = await _version(client)
        model = choose_model(client, options.model, await ask_models(client, KIND))
        name, root = str(model["id"]), str(model.get("root") or "")
        context_max = certain_context(client, model)
        sources = await _ranks(client, options)
        rank = choose_rank(client, options.rank, len(sources))
        metrics = await _metrics(client, rank)
        endpoints = None if options.cache == ASSUMED else _endpoints(client, sources[rank])
        tokenizer = await check_tokenizer(client, name, options.tokenizer or root)
        block_size, blocks = _cache_sizes(client, metrics)
        return ServerFacts(
            engine=f"vllm {version}",
            model=name,
            root=root,
            context_max=context_max,
            block_size=block_size,
            capacity_blocks=blocks // len(sources) - 1,  # it says the sum; the first is a null block, of no content
            tokenizer=tokenizer,
            endpoints=endpoints,
            start=await _only_start(client, metrics, rank),
            ranks=len(sources),
        )

    async def read_numbers(self, client: ServerClient, rank: int) -> ServerNumbers:
        """As of `ServerProfile`."""
        reply = await client.get("/metrics", ASK_TIMEOUT_S)
        return read_metrics(reply.body, rank).numbers

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:
        """As of `ServerProfile`."""
        body = completion_body(request, facts.model, facts.context_max, priorities=priorities)
        return ServerCall(PATH, body, {RANK_HEADER: str(rank)} if facts.ranks > 1 else {})


async def _version(client: ServerClient) -> str:
    found = await ask_certainly(client, "/version", KIND)
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, str):
        raise CallerError(f"{client.address} is no vLLM server: GET /version gives no version")
    return version


async def _metrics(client: ServerClient, rank: int) -> VllmMetrics:
    reply = await client.get("/metrics", ASK_TIMEOUT_S)
    try:
        return read_metrics(reply.body, rank)
    except PeerError as error:
        raise CallerError(f"{client.address} cannot be attached: {error}") from error


def _cache_sizes(client: ServerClient, metrics: VllmMetrics) -> tuple[int, int]:
    """Tokens of a block, and the number of blocks."""
    size, blocks = (metrics.cache.get(name, "") for name in ("block_size", "num_gpu_blocks"))
    if not size.isdecimal() or int(size) < 1:
        raise CallerError(f"{client.address} does not say its block size ({_CACHE} in /metrics)")
    if not blocks.isdecimal() or int(blocks) < 2:
        raise CallerError(f"{client.address} does not say how many blocks its cache has ({_CACHE})")
    if metrics.cache.get("enable_prefix_caching") == "False":
        raise CallerError(f"{client.address} keeps no prefixes: start it without --no-enable-prefix-caching")
    return int(size), int(blocks)


async def _only_start(client: ServerClient, metrics: VllmMetrics, rank: int) -> str:
    """The start of the one process behind the URL."""
    start = metrics.numbers.start
    if start is None:
        raise CallerError(
            f"{client.address} is several processes (its /metrics lack {_START}): start it with --api-server-count 1"
        )
    starts = {(await _metrics(client, rank)).numbers.start for _ in range(PROBES - 1)} | {start}
    if len(starts) > 1:
        raise several_servers(client)
    return start


async def _ranks(client: ServerClient, options: ServerOptions) -> list[dict[str, Any]]:
    """Of each of the server's ranks, how its cache events are published; at least one. With an assumed cache a server
    that does not say it has one rank."""
    try:
        found = await ask(client, "/kv_event_sources")
    except Unavailable:
        raise
    except PeerError as error:
        if options.cache == ASSUMED:
            return [{}]
        raise CallerError(
            f"{client.address} does not say where its cache events are, which vLLM 0.32 does: take that, {OR_ASSUMED}"
        ) from error
    sources = found if isinstance(found, dict) else {}
    ranked = [sources.get(str(rank)) for rank in range(len(sources))]
    if not ranked or not all(isinstance(source, dict) for source in ranked):
        if options.cache == ASSUMED:
            return [{}]
        raise _no_events(client)
    return [source for source in ranked if isinstance(source, dict)]


def _endpoints(client: ServerClient, source: dict[str, Any]) -> KvEndpoints:
    """The sockets of a rank's cache events."""
    if not source.get("enable_kv_cache_events") or source.get("publisher") != "zmq":
        raise _no_events(client)
    if not source.get("replay_endpoint"):
        raise CallerError(f"{client.address} cannot replay its cache events: start it with {EVENT_FLAGS}")
    events, replay = (reachable(client, source.get(name)) for name in ("endpoint", "replay_endpoint"))
    return KvEndpoints(events, replay)


def _no_events(client: ServerClient) -> CallerError:
    return CallerError(f"{client.address} tells no cache events: start it with {EVENT_FLAGS}, {OR_ASSUMED}")
