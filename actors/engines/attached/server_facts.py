"""ServerFacts: what a running vLLM server says about itself, and the reasons for which it is not attached.

A refusal is a CallerError of one sentence that says what to change. A server that is away now is Unavailable.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from actors.engines.attached.server_client import ServerClient
from actors.engines.attached.server_metrics import ServerMetrics, read_metrics
from actors.engines.kv_events.kv_endpoints import KvEndpoints
from core.errors import CallerError, PeerError, Unavailable

ASK_TIMEOUT_S = 10.0
"""Bound on each answer to a question about the server."""
PROBES = 6
"""Connections over which the server must be one process. Two behind a balancer that draws are missed once in 32."""
SLOTS = 256
"""Requests that a server runs at once, unless told: vLLM's own default on most GPUs. It does not say."""
EVENT_FLAGS = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\''
)
"""Flags with which a server tells its cache."""
ANY_HOST = ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - a server that listens there is reached by its URL's host
TOKENIZER_FILE = "tokenizer.json"
SAMPLE = "Contrail: naïve 123 456 — λ 😀\n\tdef f(x): return x"
"""A text by which two tokenizers are compared."""


class ServerOptions(NamedTuple):
    """The options of an attached server."""

    url: str
    key: str = ""
    """Sent as a bearer token; empty if the server asks for none."""
    model: str = ""
    """The server's own name of the model; empty if it serves one."""
    tokenizer: str = ""
    """Folder with the model's tokenizer; empty if the server's model lies in a folder of this machine."""
    slots: int = SLOTS
    rank: int | None = None
    """Of a data-parallel server, the rank that is the engine; None for a server that has one."""

    def __repr__(self) -> str:
        return f"<ServerOptions {self.url}>"


class ServerFacts(NamedTuple):
    """One start of a server."""

    version: str
    model: str
    """Its own name of the model."""
    root: str
    """Folder or hub name of the model, as the server has it."""
    context_max: int
    block_size: int
    capacity_blocks: int
    tokenizer: str
    endpoints: KvEndpoints
    started_s: float
    ranks: int
    """Data-parallel ranks that the server has."""


async def find_facts(client: ServerClient, options: ServerOptions) -> ServerFacts:
    """The facts. CallerError if the server cannot be attached, Unavailable if it does not answer now."""
    version = await _version(client)
    model = _choose_model(client, options.model, await _models(client))
    name, root, context_max = str(model["id"]), str(model.get("root") or ""), _context_max(client, model)
    sources = await _kv_event_sources(client)
    rank = _choose_rank(client, options.rank, len(sources))
    metrics = await _metrics(client, rank)
    endpoints = _endpoints(client, sources[rank])
    tokenizer = await _tokenizer(client, name, options.tokenizer or root)
    block_size, blocks = _cache_sizes(client, metrics)
    return ServerFacts(
        version=version,
        model=name,
        root=root,
        context_max=context_max,
        block_size=block_size,
        capacity_blocks=blocks // len(sources) - 1,  # it says the sum; the first is a null block, which holds nothing
        tokenizer=tokenizer,
        endpoints=endpoints,
        started_s=await _only_start(client, metrics, rank),
        ranks=len(sources),
    )


async def _ask(client: ServerClient, path: str) -> Any:
    """The JSON there; CallerError if the server refuses the key, PeerError if there is none."""
    try:
        reply = await client.get(path, ASK_TIMEOUT_S)
        if reply.status in {401, 403}:
            raise CallerError(f"{client.address} refuses the key: give the file that has it, --server-key-file")
        if reply.status != 200:
            raise PeerError(f"GET {path} gives status {reply.status}")
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"GET {path} gives no JSON") from error


async def _version(client: ServerClient) -> str:
    found = await _ask_vllm(client, "/version")
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, str):
        raise CallerError(f"{client.address} is no vLLM server: GET /version gives no version")
    return version


async def _ask_vllm(client: ServerClient, path: str) -> Any:
    """The JSON; CallerError if there is none, for a vLLM server has it."""
    try:
        return await _ask(client, path)
    except Unavailable:
        raise  # away now
    except PeerError as error:
        raise CallerError(f"{client.address} is no vLLM server that can be attached: {error}") from error


async def _models(client: ServerClient) -> list[dict[str, Any]]:
    """The models without adapters."""
    found = await _ask_vllm(client, "/v1/models")
    data = found.get("data") if isinstance(found, dict) else None
    models = [each for each in data or () if isinstance(each, dict) and isinstance(each.get("id"), str)]
    if not models:
        raise CallerError(f"{client.address} serves no model")
    return models


def _choose_model(client: ServerClient, name: str, models: list[dict[str, Any]]) -> dict[str, Any]:
    names = ", ".join(each["id"] for each in models)
    if name:
        chosen = next((each for each in models if each["id"] == name), None)
        if chosen is None:
            raise CallerError(f"{client.address} serves no model {name!r}; it serves {names}")
        if chosen.get("parent"):
            raise CallerError(f"{name!r} is an adapter, and adapters of an attached server are not served yet")
        return chosen
    whole = [each for each in models if not each.get("parent")]
    if len({each.get("root") for each in whole}) != 1:
        raise CallerError(f"{client.address} serves several models, choose one with --server-model: {names}")
    return whole[0]


def _context_max(client: ServerClient, model: dict[str, Any]) -> int:
    found = model.get("max_model_len")
    if not isinstance(found, int) or found < 1:
        raise CallerError(f"{client.address} does not say how long a prompt may be (max_model_len in /v1/models)")
    return found


async def _metrics(client: ServerClient, rank: int) -> ServerMetrics:
    reply = await client.get("/metrics", ASK_TIMEOUT_S)
    try:
        return read_metrics(reply.body, rank)
    except PeerError as error:
        raise CallerError(f"{client.address} cannot be attached: {error}") from error


def _cache_sizes(client: ServerClient, metrics: ServerMetrics) -> tuple[int, int]:
    """Tokens of a block, and the number of blocks."""
    size, blocks = (metrics.cache.get(name, "") for name in ("block_size", "num_gpu_blocks"))
    if not size.isdecimal() or int(size) < 1:
        raise CallerError(f"{client.address} does not say its block size (vllm:cache_config_info in /metrics)")
    if not blocks.isdecimal() or int(blocks) < 2:
        raise CallerError(f"{client.address} does not say how many blocks its cache has (vllm:cache_config_info)")
    if metrics.cache.get("enable_prefix_caching") == "False":
        raise CallerError(f"{client.address} keeps no prefixes: start it without --no-enable-prefix-caching")
    return int(size), int(blocks)


async def _only_start(client: ServerClient, metrics: ServerMetrics, rank: int) -> float:
    """The start of the one process behind the URL."""
    if metrics.started_s is None:
        raise CallerError(
            f"{client.address} is several processes (its /metrics lack process_start_time_seconds): start it with "
            "--api-server-count 1"
        )
    starts = {(await _metrics(client, rank)).started_s for _ in range(PROBES - 1)} | {metrics.started_s}
    if len(starts) > 1:
        raise CallerError(f"{client.address} balances over several servers: attach each by its own address")
    return metrics.started_s


async def _kv_event_sources(client: ServerClient) -> list[dict[str, Any]]:
    """Of each of the server's ranks, how its cache events are published; at least one."""
    try:
        found = await _ask(client, "/kv_event_sources")
    except Unavailable:
        raise
    except PeerError as error:
        raise CallerError(f"{client.address} does not say where its cache events are, which vLLM 0.32 does") from error
    sources = found if isinstance(found, dict) else {}
    ranked = [sources.get(str(rank)) for rank in range(len(sources))]
    if not ranked or not all(isinstance(source, dict) for source in ranked):
        raise CallerError(f"{client.address} tells no cache events: start it with {EVENT_FLAGS}")
    return [source for source in ranked if isinstance(source, dict)]


def _choose_rank(client: ServerClient, rank: int | None, ranks: int) -> int:
    if rank is None and ranks > 1:
        raise CallerError(
            f"{client.address} has {ranks} data-parallel ranks: attach a worker for each, with --rank 0 to "
            f"{ranks - 1}, or `ranks: {ranks}` in a deployment file"
        )
    if (rank or 0) >= ranks:
        raise CallerError(f"{client.address} has no data-parallel rank {rank}: it has {ranks}, numbered from 0")
    return rank or 0


def _endpoints(client: ServerClient, source: dict[str, Any]) -> KvEndpoints:
    """The sockets of a rank's cache events."""
    if not source.get("enable_kv_cache_events") or source.get("publisher") != "zmq":
        raise CallerError(f"{client.address} tells no cache events: start it with {EVENT_FLAGS}")
    if not source.get("replay_endpoint"):
        raise CallerError(f"{client.address} cannot replay its cache events: start it with {EVENT_FLAGS}")
    events, replay = (_reachable(client, source.get(name)) for name in ("endpoint", "replay_endpoint"))
    return KvEndpoints(events, replay)


def _reachable(client: ServerClient, endpoint: object) -> str:
    """The endpoint as it is reached from here."""
    text = str(endpoint)
    scheme, _, place = text.partition("://")
    if scheme == "ipc":
        return text
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not port.isdecimal() or not int(port):
        raise CallerError(f"{client.address} has its cache events at {text}, which cannot be reached: use tcp://*:PORT")
    if host not in ANY_HOST:
        return text
    own = client.address.host
    return f"tcp://[{own}]:{port}" if ":" in own else f"tcp://{own}:{port}"


async def _tokenizer(client: ServerClient, model: str, folder: str) -> str:
    """The folder; it has a tokenizer that makes the tokens that the server's makes."""
    ours = await asyncio.to_thread(_tokens, folder)
    body = json.dumps({"model": model, "prompt": SAMPLE, "add_special_tokens": False}).encode()
    reply = await client.post("/tokenize", body, ASK_TIMEOUT_S)
    if reply.status == 404:
        return folder  # the server tokenizes nothing for others
    try:
        theirs = json.loads(reply.body)["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise CallerError(f"{client.address} does not tokenize (POST /tokenize gives {reply.status})") from error
    if ours != theirs:
        raise CallerError(f"the tokenizer in {folder} is not that of the server's model: give its folder, --tokenizer")
    return folder


def _tokens(folder: str) -> list[int]:
    """The sample's; reads from disk."""
    file = Path(folder) / TOKENIZER_FILE
    if not folder or not file.is_file():
        raise CallerError(f"there is no {TOKENIZER_FILE} in {folder or 'the model'}: give its folder with --tokenizer")
    try:
        return list(Tokenizer.from_file(str(file)).encode(SAMPLE, add_special_tokens=False).ids)
    except Exception as error:  # the library raises plain Exception
        raise CallerError(f"{file} is no tokenizer: {error}") from error
