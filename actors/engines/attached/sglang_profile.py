"""SglangProfile: a server of SGLang with `--enable-metrics`, and with cache events or an assumed cache.

1. It says in `/server_info` how it was started: block size, size of the cache, ranks, and the sockets of its events.
   The seed that each start draws and the durations of that start are the name of the start.
2. Blocks of prompts with a salt are told apart by servers whose events have the salt; the events of a trial show it.
3. Its numbers do not say when it was started: a new start is seen by events that begin anew, or by its absence.
4. `/health` would compute a token each time, so `/model_info` shows that it lives.
5. It aborts a request 2 s after the hang-up, or at once if it is told to.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import orjson

from actors.engines.attached.generate_call import GENERATE_PATH, GenerateReader, generate_body
from actors.engines.attached.prometheus_samples import Sample, SampleReader
from actors.engines.attached.server_discovery import (
    ASK_TIMEOUT_S,
    OR_ASSUMED,
    PROBES,
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
    AnswerReader,
    ServerCall,
    ServerFacts,
    ServerNumbers,
    ServerOptions,
    ServerProfile,
)
from actors.engines.kv_events.kv_batch import KvBatchReader
from actors.engines.kv_events.kv_endpoints import KvEndpoints
from actors.engines.kv_events.sglang_event_reader import SglangEventReader
from actors.transport.server_client import ServerClient
from core.errors import CallerError, PeerError
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId

KIND = "SGLang"
ABORT_PATH = "/abort_request"
BLOCK_SIZE_MIN = 8
"""Tokens. SGLang's own default is 1, of which every token of a prompt would be a block in each router."""
EVENT_FLAGS = (
    '--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", '
    '"format": "dynamo"}\''
)
"""Flags with which a server tells its cache."""
_RUNNING, _WAITING, _SHARE = "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"
_STEPS, _SLIDING = "sglang:realtime_tokens_total", "sglang:max_total_num_tokens_swa"
_SAMPLES = SampleReader(_RUNNING, _WAITING, _SHARE, _STEPS, _SLIDING)


class SglangProfile(ServerProfile):
    """One server of SGLang."""

    health_path = "/model_info"
    keeps_salts_apart: bool | None = None
    serves_adapters = False

    async def find_facts(self, client: ServerClient, options: ServerOptions) -> ServerFacts:
        """As of `ServerProfile`."""
        info = await _info(client)
        model = choose_model(client, options.model, await ask_models(client, KIND))
        name, root = str(model["id"]), str(info.get("model_path") or "")
        context_max = certain_context(client, model)
        _check_manner(client, info)
        sockets = _sockets(info)
        ranks = sockets.ranks
        rank = choose_rank(client, options.rank, ranks)
        endpoints = None if options.cache == ASSUMED else _endpoints(client, sockets, rank)
        tokenizer = await check_tokenizer(client, name, options.tokenizer or root)
        await _check_metrics(client, rank)
        start = _start_of(info)
        if {_start_of(await _info(client)) for _ in range(PROBES - 1)} != {start}:
            raise several_servers(client)
        return ServerFacts(
            engine=f"sglang {info.get('version')}",
            model=name,
            root=root,
            context_max=context_max,
            block_size=sockets.block_size,
            capacity_blocks=_capacity(client, info, sockets.block_size),
            tokenizer=tokenizer,
            endpoints=endpoints,
            start=start,
            ranks=ranks,
        )

    async def read_numbers(self, client: ServerClient, rank: int) -> ServerNumbers:
        """As of `ServerProfile`."""
        return read_numbers((await client.get("/metrics", ASK_TIMEOUT_S)).body, rank)

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:  # noqa: ARG002 (never sent)
        """As of `ServerProfile`."""
        body = generate_body(request, facts.context_max, rank if facts.ranks > 1 else None)
        return ServerCall(GENERATE_PATH, body, {})

    def abort(self, request: RequestId) -> ServerCall | None:
        """As of `ServerProfile`."""
        return ServerCall(ABORT_PATH, orjson.dumps({"rid": request}), {})

    def answer_reader(self, sampling: Sampling) -> AnswerReader:
        """As of `ServerProfile`."""
        return GenerateReader(sampling)

    def batch_reader(self, facts: ServerFacts) -> KvBatchReader:  # noqa: ARG002 (its events say all)
        """As of `ServerProfile`."""
        return SglangEventReader()


def read_numbers(text: bytes, rank: int = 0) -> ServerNumbers:
    """The numbers in the text of `/metrics`; PeerError if it is none of an SGLang server."""
    numbers: dict[str, float] = {}
    for sample in _SAMPLES.read(text):
        if _is_of(sample, rank):
            before = numbers.get(_STEPS, 0.0) if sample.name == _STEPS else 0.0  # a sample for each kind of token
            numbers[sample.name] = before + sample.value
    try:
        return ServerNumbers(
            start=None,
            running=round(numbers[_RUNNING]),
            waiting=round(numbers[_WAITING]),
            cache_share=numbers[_SHARE],
            steps=round(numbers.get(_STEPS, 0.0)),
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise PeerError(f"its /metrics lack what SGLang's have ({error}): start it with --enable-metrics") from error


def _is_of(sample: Sample, rank: int) -> bool:
    """The sample is of the rank as a whole: of its first scheduler, and of requests of all priorities."""
    labels = sample.labels
    own = labels["dp_rank"] == str(rank) if labels.get("dp_rank") else labels.get("tp_rank", "0") == "0"
    return own and labels.get("pp_rank", "0") == "0" and not labels.get("priority")


async def _info(client: ServerClient) -> dict[str, Any]:
    found = await ask_certainly(client, "/server_info", KIND)
    if not isinstance(found, dict) or not isinstance(found.get("version"), str):
        raise CallerError(f"{client.address} is no SGLang server: GET /server_info gives no version")
    return found


def _start_of(info: dict[str, Any]) -> str:
    return json.dumps([info.get("random_seed"), info.get("startup_time")], sort_keys=True)


def _check_manner(client: ServerClient, info: dict[str, Any]) -> None:
    """The server was started as one that can be attached."""
    if info.get("disaggregation_mode") not in {None, "null"}:
        raise CallerError(f"{client.address} computes one half of each request: attach a server without disaggregation")
    if info.get("disable_radix_cache"):
        raise CallerError(f"{client.address} keeps no prefixes: start it without --disable-radix-cache")


class _Sockets(NamedTuple):
    """The sockets of rank 0; those of rank r are r ports on."""

    block_size: int
    ranks: int
    host: str = ""
    """Empty if it tells no events."""
    events_port: int = 0
    replay_port: int = 0
    """0 if it replays none."""


def _sockets(info: dict[str, Any]) -> _Sockets:
    """As `kv_events` has them, or in an older server as its start option has them."""
    described = info.get("kv_events")
    if isinstance(described, dict) and described.get("publisher") == "zmq":
        return _Sockets(
            block_size=_whole(described.get("block_size")),
            ranks=max(1, _whole(described.get("dp_size"))),
            host=str(described.get("endpoint_host", "*")),
            events_port=_whole(described.get("endpoint_port_base")),
            replay_port=_whole(described.get("replay_endpoint_port_base")),
        )
    silent = _Sockets(block_size=_whole(info.get("page_size")), ranks=max(1, _whole(info.get("dp_size"))))
    if "kv_events" in info:
        return silent
    config = _config(info.get("kv_events_config"))
    if config.get("publisher") != "zmq":
        return silent
    host, _, port = str(config.get("endpoint", "tcp://*:5557")).removeprefix("tcp://").rpartition(":")
    replay = str(config.get("replay_endpoint") or "").rpartition(":")[2]
    return silent._replace(host=host, events_port=_digits(port), replay_port=_digits(replay))


def _endpoints(client: ServerClient, sockets: _Sockets, rank: int) -> KvEndpoints:
    if not sockets.host:
        raise CallerError(f"{client.address} tells no cache events: start it with {EVENT_FLAGS}, {OR_ASSUMED}")
    if not sockets.replay_port:
        raise CallerError(f"{client.address} cannot replay its cache events: start it with {EVENT_FLAGS}")
    ports = (sockets.events_port, sockets.replay_port)
    return KvEndpoints(*(reachable(client, f"tcp://{sockets.host}:{port + rank}") for port in ports))


def _capacity(client: ServerClient, info: dict[str, Any], block_size: int) -> int:
    """Blocks of one rank's cache."""
    if block_size < BLOCK_SIZE_MIN:
        raise CallerError(
            f"{client.address} has blocks of {block_size} tokens, of which there would be too many: start it with "
            "--page-size 16"
        )
    tokens = _whole(info.get("max_total_num_tokens"))
    if tokens < block_size:
        raise CallerError(f"{client.address} does not say how much its cache holds (max_total_num_tokens)")
    return tokens // block_size


async def _check_metrics(client: ServerClient, rank: int) -> None:
    text = (await client.get("/metrics", ASK_TIMEOUT_S)).body
    try:
        read_numbers(text, rank)
    except PeerError as error:
        raise CallerError(f"{client.address} cannot be attached: {error}") from error
    if any(sample.name == _SLIDING for sample in _SAMPLES.read(text)):
        raise CallerError(
            f"{client.address} cannot be attached: its model mixes several kinds of attention, of which prefixes "
            "cannot be told yet"
        )


def _config(text: object) -> dict[str, Any]:
    """The start option's object; empty if there is none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        found = None  # the server would not have started with it
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _digits(text: str) -> int:
    return int(text) if text.isdecimal() else 0
