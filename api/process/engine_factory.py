"""The engine of a worker, made from the worker's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import Engine
from actors.engines.vllm.vllm_args import DiskTier, FetchTier
from api.config.addresses import is_loopback, split_address
from api.config.worker_groups import (
    ADAPTERS_ALONE,
    DISK_ALONE,
    DISK_SIMULATED,
    FETCH_ALONE,
    FETCH_SIMULATED,
    FETCH_WITH_PREFILL,
    TIERS_PREFILL,
    TIERS_SIMULATED,
)
from core.errors import CallerError
from core.events.kv import PREFILL

NO_MACHINE = ("0.0.0.0", "::")  # noqa: S104 - these are the ones we do not give out


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Which engine, with what, and for whom."""

    engine: str
    model: str
    model_path: str
    engine_args: dict[str, Any]
    moves_blocks: str
    """`prefill` if others fetch blocks here, `decode` if it fetches them, empty if neither."""
    block_host: str
    """Host from which other machines fetch blocks; empty leaves it to the engine."""
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""
    transfer_key: bytes = field(default=b"", repr=False)
    """The key by which engines prove themselves to each other when they move blocks."""
    reasoning_parser: str = ""
    """Parser of the reasoning; a guided answer begins behind it."""
    host_tier_bytes: int = 0
    """Memory for copies of the cache's blocks; 0 for none."""
    disk_tier: DiskTier | None = None
    """The folder for copies behind that."""
    fetch_tier: FetchTier | None = None
    """Other engines behind it, whose blocks are fetched."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The folders of adapters, by name."""
    adapters_placed: bool = False
    """True if the engine starts without these adapters, and the worker loads some of them."""
    adapter_slots: int = 0
    """The number of these that are loaded at a time; 0 if it may be all."""
    attached: ServerOptions | None = None
    """The server to attach, for the engine `attached`."""


def make_engine(arguments: EngineArguments) -> Engine:
    """The engine, not started; its own library is imported when it starts."""
    moves_blocks = arguments.moves_blocks
    _check(arguments)
    at_start = {} if arguments.adapters_placed else arguments.adapters
    if arguments.attached is not None:
        return AttachedEngine(arguments.model, arguments.attached, at_start)
    if arguments.engine == "simulated":
        from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings  # noqa: PLC0415 - only if asked for
        from actors.engines.simulated.simulated_side_channel import TcpSideChannel  # noqa: PLC0415 - likewise

        given: dict[str, Any] = {"model_path": arguments.model_path} | arguments.engine_args
        if arguments.host_tier_bytes:
            block_bytes = SimulatedSettings.parse(given).block_bytes
            given.setdefault("host_blocks", max(1, arguments.host_tier_bytes // block_bytes))
        if moves_blocks:
            given["transfer"] = True
            if arguments.block_host:
                given.setdefault("side_channel_host", arguments.block_host)
        settings = SimulatedSettings.parse(given)
        channel = TcpSideChannel(settings.side_channel_host, settings.side_channel_port, arguments.transfer_key)
        return SimulatedEngine(arguments.model, settings, channel=channel, adapters=at_start)
    from actors.engines.vllm.vllm_args import adapter_arguments  # noqa: PLC0415 - only if asked for
    from actors.engines.vllm.vllm_engine import VllmEngine  # noqa: PLC0415 - likewise
    from actors.engines.vllm.vllm_side_channel import HOST_VARIABLE  # noqa: PLC0415

    if moves_blocks and arguments.block_host:
        os.environ.setdefault(HOST_VARIABLE, arguments.block_host)  # what the user has set counts
    engine_args = arguments.engine_args
    if arguments.adapters_placed:  # any of them may be loaded later
        at_once = {"max_loras": arguments.adapter_slots} if arguments.adapter_slots else {}
        engine_args = adapter_arguments(arguments.adapters, engine_args) | at_once | engine_args
    return VllmEngine(
        arguments.model,
        arguments.model_path,
        engine_args,
        adapters=at_start,
        moves_blocks=moves_blocks,
        transfer_key=arguments.transfer_key,
        reasoning_parser=arguments.reasoning_parser,
        host_tier_bytes=arguments.host_tier_bytes,
        disk_tier=arguments.disk_tier,
        fetch_tier=arguments.fetch_tier,
    )


def _check(arguments: EngineArguments) -> None:
    """CallerError for parts that do not go together."""
    if arguments.host_tier_bytes and arguments.moves_blocks:
        _check_tiers(arguments)
    if arguments.disk_tier is not None and not arguments.host_tier_bytes:
        raise CallerError(DISK_ALONE)
    if arguments.disk_tier is not None and arguments.engine == "simulated":
        raise CallerError(DISK_SIMULATED)
    if arguments.fetch_tier is not None:
        if not arguments.host_tier_bytes:
            raise CallerError(FETCH_ALONE)
        if arguments.engine == "simulated":
            raise CallerError(FETCH_SIMULATED)
    if arguments.adapters and arguments.moves_blocks:
        raise CallerError(ADAPTERS_ALONE)


def _check_tiers(arguments: EngineArguments) -> None:
    """CallerError if the tiers do not go together with moving blocks."""
    if arguments.moves_blocks == PREFILL:
        raise CallerError(TIERS_PREFILL)
    if arguments.engine == "simulated":
        raise CallerError(TIERS_SIMULATED)
    if arguments.fetch_tier is not None:
        raise CallerError(FETCH_WITH_PREFILL)


def block_host(listen_host: str, advertise: str) -> str:
    """The host from which workers on other machines fetch blocks: the one by which they reach the worker.

    Empty for loopback, and for an address that names no machine.
    """
    host = listen_host
    if advertise:
        host = split_address(advertise)[0] if ":" in advertise else advertise
    return "" if is_loopback(host) or host in NO_MACHINE else host


def engine_object(text: str) -> dict[str, Any]:
    """The JSON object of --engine-args; CallerError if it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CallerError(f"--engine-args is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CallerError("--engine-args must be a JSON object")
    return value


def engine_pairs(words: tuple[str, ...]) -> dict[str, Any]:
    """`--max-num-seqs 64 --enforce-eager` as the engine's arguments: JSON values where they are JSON, else text."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise CallerError(f"{word!r}: what follows `--` must be the engine's own `--option value`")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        try:
            given[name.replace("-", "_")] = orjson.loads(value)
        except orjson.JSONDecodeError:
            given[name.replace("-", "_")] = value
    return given
