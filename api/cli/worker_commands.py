"""`contrail worker`: one worker, an engine with its cache events in the log. `contrail attach`: one whose engine is a
running server. `contrail prefill-worker`: a worker that computes prompts for decode workers and answers no request.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import uvloop

from actors.engines.attached.profile_choice import SERVERS
from actors.engines.attached.server_profile import AUTO, CACHES, REPORTED, ServerOptions
from actors.engines.attached.server_profile import SLOTS as SERVER_SLOTS
from actors.engines.engine_adapters import check_adapter_name
from actors.engines.vllm.vllm_args import FETCH_MB_PER_S, DiskTier, FetchTier
from actors.prompt_cache.prompt_store import PROMPTS_BYTES_MAX
from actors.worker.engine_watchdog import ENGINE_STALL_CPU_S, ENGINE_STALL_S
from actors.worker.graceful_drain import DRAIN_TIMEOUT_S
from actors.worker.model_files import ChatFormat
from actors.worker.worker import WorkerOptions
from api.cli.options import OPS_OPTION, OPS_TOKEN_OPTION, name_option, operations_section
from api.config.addresses import split_address
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.config.schema import (
    ATTACHED,
    DRAIN_TIMEOUT_MAX_S,
    ENGINES,
    FETCH_GB_PER_S_MAX,
    FETCH_GB_PER_S_MIN,
    PREFILL_SLOTS,
    SLOTS_MAX,
)
from api.config.units import size_bytes
from api.deployment.process_specs import SUPERVISED
from api.process.engine_factory import EngineArguments, block_host, engine_object, engine_pairs
from api.process.logging_setup import configure_engine_logging, configure_logging
from api.process.worker import FAILED, serve_worker
from core.clock import SystemClock
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.ids import new_id
from core.served_names import check_names

ENGINE_OPTIONS = (
    click.option("--model-path", default="", help="Folder or hub name of the model; --model if not given."),
    click.option("--engine", default="vllm", show_default=True, type=click.Choice(ENGINES)),
    click.option("--engine-args", "engine_json", default="{}", help="Arguments for the engine, as a JSON object."),
    click.argument("more", nargs=-1, type=click.UNPROCESSED),
)
"""Of workers that start their engine."""
OPTIONS = (
    click.option("--model", required=True, help="What clients call the model."),
    click.option(
        "--listen",
        default="127.0.0.1:0",
        show_default=True,
        help="HOST:PORT for requests; port 0 is a free one. Metrics and state are elsewhere: --ops.",
    ),
    OPS_OPTION,
    OPS_TOKEN_OPTION,
    click.option("--advertise", default="", help="HOST or HOST:PORT under which others reach it."),
    click.option(
        "--drain-timeout",
        type=click.FloatRange(0, DRAIN_TIMEOUT_MAX_S),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        metavar="S",
        help="Told to end, wait for requests for so long; then other workers go on with them.",
    ),
    click.option(
        "--engine-stall",
        type=click.FloatRange(min=1),
        metavar="S",
        help="Longer than any step of the engine: one that ends none for so long, though requests wait, hangs, and the "
        f"worker ends.  [default: {ENGINE_STALL_S:g}, on a CPU {ENGINE_STALL_CPU_S:g}]",
    ),
    click.option(
        "--prompt-cache-max",
        default=f"{PROMPTS_BYTES_MAX // 2**20}MiB",
        show_default=True,
        metavar="SIZE",
        help="Memory for the token ids of long prompts, so that front ends send what is new in them.",
    ),
    click.option(SUPERVISED, is_flag=True, hidden=True),
)
"""Of all workers."""
CHAT_OPTIONS = (
    click.option(
        "--tool-call-parser", default="", metavar="NAME", help="How the model writes calls of tools, by vLLM's names."
    ),
    click.option("--reasoning-parser", default="", metavar="NAME", help="How it writes its reasoning, likewise."),
    click.option("--chat-template", default="", metavar="FILE", help="A jinja template instead of the model's own."),
    click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Another name for the model; may end in *."),
)
"""Of workers that answer requests."""


def with_options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The command has these options; it gives those of `OPTIONS` and `ENGINE_OPTIONS` to `run_worker` as they come."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@click.command(context_settings={"ignore_unknown_options": True})
@deployment_options
@name_option("decode-0")
@click.option("--role", default=DECODE, show_default=True, type=click.Choice([DECODE]))
@click.option(
    "--remote-prefill", is_flag=True, help="Long prompts may be computed by prefill workers, and their blocks fetched."
)
@with_options(*CHAT_OPTIONS)
@click.option(
    "--host-tier", metavar="SIZE", help="Memory for copies of the cache's blocks: what leaves the device stays there."
)
@click.option("--disk-tier", metavar="DIR", help="Files of these copies, too: in a folder of the worker's name there.")
@click.option("--disk-size", metavar="SIZE", help="Bytes of these files.")
@click.option("--disk-shared", is_flag=True, help="In the folder itself, with all workers of this machine that say so.")
@click.option("--disk-remote", is_flag=True, help="That folder is on a network file system of several machines.")
@click.option("--fetch", is_flag=True, help="Starts of prompts are fetched from the host tiers of other such workers.")
@click.option(
    "--fetch-gb-per-s",
    default=FETCH_MB_PER_S / 1000,
    show_default=True,
    type=click.FloatRange(FETCH_GB_PER_S_MIN, FETCH_GB_PER_S_MAX),
    help="The speed at which they come, for decisions.",
)
@click.option(
    "--adapter", "adapters", multiple=True, metavar="NAME=PATH", help="A LoRA in this folder, served as model NAME."
)
@click.option(
    "--adapter-replicas",
    type=click.IntRange(min=1),
    help="Workers of the group that serve each adapter; all without it.",
)
@with_options(*ENGINE_OPTIONS, *OPTIONS)
def worker(
    connection: DeploymentRef,
    role: str,
    remote_prefill: bool,
    aliases: tuple[str, ...],
    tool_call_parser: str,
    reasoning_parser: str,
    chat_template: str,
    **rest: Any,
) -> None:
    """Start one worker: an engine and its cache. What follows `--` goes to the engine as it stands.

    \b
    contrail worker --data data --name decode-2 --model tiny --model-path data/models/tiny
    contrail worker --data data --name decode-3 --model tiny --engine simulated
    contrail worker --data data --name decode-4 --model tiny --model-path data/models/tiny --remote-prefill
    contrail worker --data data --name decode-5 --model tiny --model-path data/models/tiny --host-tier 1GiB
    contrail worker --data data --name decode-7 --model tiny --model-path data/models/tiny --adapter sql=loras/sql
    contrail worker --data data --name decode-6 --model tiny --model-path data/models/tiny --host-tier 1GiB \\
        --disk-tier data/kv --disk-size 20GiB
    contrail worker --data data --name decode-8 --model tiny --model-path data/models/tiny --host-tier 1GiB --fetch
    contrail worker --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name gpu-7 --model Qwen/Qwen3-0.6B --listen 10.0.0.7:9100 -- --max-num-seqs 64

    With --remote-prefill it asks the deployment's prefill workers, if any are there, for prompts of which its own
    cache lacks much; how much is a live setting: contrail settings. `contrail prefill-worker` starts one of those.
    """
    _check_names(rest["model"], aliases)
    chat_format = ChatFormat(tool_call_parser, reasoning_parser, chat_template)
    run_worker(
        connection,
        role,
        moves_blocks=DECODE if remote_prefill else "",
        chat_format=chat_format,
        aliases=aliases,
        **rest,
    )


@click.command
@deployment_options
@name_option("attached-0")
@click.option("--engine", default=AUTO, show_default=True, type=click.Choice(SERVERS), help="The server's kind.")
@click.option(
    "--cache",
    default=REPORTED,
    show_default=True,
    type=click.Choice(CACHES),
    help="Its cache is known by its events, or assumed from the prompts that it is sent.",
)
@click.option(
    "--context", default=0, type=click.IntRange(min=0), help="Of an openai server: prompt with answer, tokens."
)
@click.option("--block-size", default=0, type=click.IntRange(min=0), help="Of an openai server: tokens of a block.")
@click.option("--cache-blocks", default=0, type=click.IntRange(min=0), help="Of an openai server: blocks of its cache.")
@click.option("--url", required=True, metavar="URL", help="The server's root: http://HOST:PORT.")
@click.option("--server-model", default="", metavar="NAME", help="The server's own name, if it serves several models.")
@click.option(
    "--server-key-file", metavar="FILE", type=click.Path(dir_okay=False), help="The key that the server asks for."
)
@click.option(
    "--tokenizer",
    default="",
    metavar="DIR",
    help="The model's tokenizer, if the server's model is not in a folder here.",
)
@click.option(
    "--slots",
    default=SERVER_SLOTS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Requests that the server runs at once: its --max-num-seqs.",
)
@click.option("--rank", type=click.IntRange(min=0), help="Of a data-parallel server, the rank: a worker for each.")
@with_options(*CHAT_OPTIONS, *OPTIONS)
def attach(
    connection: DeploymentRef,
    url: str,
    server_model: str,
    server_key_file: str | None,
    tokenizer: str,
    slots: int,
    rank: int | None,
    engine: str,
    cache: str,
    context: int,
    block_size: int,
    cache_blocks: int,
    aliases: tuple[str, ...],
    tool_call_parser: str,
    reasoning_parser: str,
    chat_template: str,
    **rest: Any,
) -> None:
    """Start one worker whose engine is a running server of vLLM or SGLang. It needs neither of them, nor a GPU.

    \b
    contrail attach --data data --model qwen --url http://127.0.0.1:8001 --tokenizer models/Qwen3-0.6B
    contrail attach --data data --model qwen --url http://10.0.0.7:8000 --name gpu-7 --server-key-file key
    contrail attach --data data --model qwen --url http://10.0.0.9:8000 --name gpu-9 --cache assumed

    The server must tell its cache: start it with --kv-events-config, as docs/attach.md has it. With --cache assumed it
    need not: its cache is taken to hold the prompts that this worker sent. When the server ends,
    the worker is lost; when the server answers again, it joins as a new one with an empty cache.
    """
    _check_names(rest["model"], aliases)
    server = ServerOptions(
        url,
        key=_read_key(server_key_file),
        model=server_model,
        tokenizer=str(Path(tokenizer).resolve()) if tokenizer else "",
        slots=slots,
        rank=rank,
        engine=engine,
        cache=cache,
        context_max=context,
        block_size=block_size,
        cache_blocks=cache_blocks,
    )
    chat_format = ChatFormat(tool_call_parser, reasoning_parser, chat_template)
    run_worker(connection, DECODE, moves_blocks="", chat_format=chat_format, aliases=aliases, attached=server, **rest)


def _check_names(model: str, aliases: tuple[str, ...]) -> None:
    try:
        check_names((model, *aliases))
    except ValueError as error:
        raise CallerError(f"--alias: {error}") from error


def _read_key(file: str | None) -> str:
    """The only line of the file; empty without a file."""
    if file is None:
        return ""
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise CallerError(f"--server-key-file: {file} cannot be read ({error})") from error


def run_worker(
    connection: DeploymentRef,
    role: str,
    *,
    name: str,
    moves_blocks: str,
    slots: int | None = None,
    host_tier: str | None = None,
    disk_tier: str | None = None,
    disk_size: str | None = None,
    disk_shared: bool = False,
    disk_remote: bool = False,
    fetch: bool = False,
    fetch_gb_per_s: float = FETCH_MB_PER_S / 1000,
    chat_format: ChatFormat | None = None,
    aliases: tuple[str, ...] = (),
    attached: ServerOptions | None = None,
    adapters: tuple[str, ...] = (),
    adapter_replicas: int | None = None,
    **given: Any,
) -> None:
    """The worker ran and ended in order; exit status 1 if it failed. `given` has the values of `OPTIONS`, and without
    an attached server those of `ENGINE_OPTIONS`."""
    configure_logging()
    configure_engine_logging()
    try:
        host, port = split_address(given["listen"])
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    prompts_bytes_max = _size("--prompt-cache-max", given["prompt_cache_max"])
    chat_format = chat_format or ChatFormat()
    folders = _adapter_paths(adapters)
    if adapter_replicas is not None and not folders:
        raise CallerError("--adapter-replicas is for adapters: give --adapter, too")
    options = WorkerOptions(
        namespace=connection.namespace,
        name=name,
        role=role,
        listen_host=host,
        listen_port=port,
        reuse_port=given["supervised"],
        advertise=given["advertise"],
        partitions=connection.topology.kv_partitions,
        restate_every_s=connection.restate_every_s,
        routing=connection.deployment.routing_settings,
        drain_timeout_s=given["drain_timeout"],
        engine_stall_s=given["engine_stall"],
        prompts_bytes_max=prompts_bytes_max,
        prefill_slots=slots or PREFILL_SLOTS,
        manner=chat_format,
        aliases=aliases,
        adapter_catalog=folders if adapter_replicas is not None else {},
        adapter_replicas=adapter_replicas or 1,
        link=connection.link(SystemClock()),
    )
    engine_args = {**engine_object(given.get("engine_json", "{}")), **engine_pairs(given.get("more", ()))}
    arguments = EngineArguments(
        engine=given.get("engine", ATTACHED),
        model=given["model"],
        model_path=given.get("model_path") or given["model"],
        engine_args=engine_args,
        moves_blocks=moves_blocks,
        block_host=block_host(host, given["advertise"]),
        home=connection.data if given["supervised"] else None,
        transfer_key=connection.key.transfer_key,
        reasoning_parser=chat_format.reasoning_parser,
        host_tier_bytes=0 if host_tier is None else _size("--host-tier", host_tier),
        disk_tier=_disk_tier(
            name,
            disk_tier,
            disk_size,
            connection.key.disk_key,
            shared=disk_shared,
            local=connection.data if disk_remote else None,
        ),
        fetch_tier=FetchTier(
            block_host(host, given["advertise"]) or "127.0.0.1",
            connection.key.transfer_key,
            connection.data or Path.cwd(),
            round(fetch_gb_per_s * 1000),
        )
        if fetch
        else None,
        attached=attached,
        adapters=folders,
        adapters_placed=adapter_replicas is not None,
    )
    operations = operations_section(connection.deployment.operations, given["ops_token"])
    reason = uvloop.run(serve_worker(connection, options, arguments, operations, given["ops"]))
    if reason.startswith(FAILED):
        click.echo(f"contrail: {reason}", err=True)  # the last line, which the supervisor repeats
        raise SystemExit(1)  # the supervisor starts another


def _disk_tier(
    name: str, folder: str | None, size: str | None, key: bytes, *, shared: bool = False, local: Path | None = None
) -> DiskTier | None:
    """`local` is a folder of this machine, if the tier's own lies on a network file system."""
    if local is not None and not shared:
        raise CallerError("--disk-remote says how --disk-shared is used: give that, too")
    if shared and folder is None:
        raise CallerError("--disk-shared says how --disk-tier is used: give that, too")
    if (folder is None) != (size is None):
        raise CallerError("--disk-tier and --disk-size go together: give both, or none")
    if not folder or size is None:
        return None
    place = Path(folder).resolve()
    if shared:
        return DiskTier(place, _size("--disk-size", size), key, new_id(), local)
    return DiskTier(place / name, _size("--disk-size", size), key)


def _adapter_paths(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not path or name in found:
            raise CallerError(f"--adapter {pair}: give each adapter once, as NAME=PATH")
        check_adapter_name(name)
        found[name] = str(Path(path).resolve())
    return found


def _size(option: str, text: str) -> int:
    try:
        return size_bytes(text)
    except ValueError as error:
        raise CallerError(f"{option}: {error}") from error


@click.command(context_settings={"ignore_unknown_options": True})
@deployment_options
@name_option("prefill-0")
@click.option(
    "--slots",
    default=PREFILL_SLOTS,
    show_default=True,
    type=click.IntRange(1, SLOTS_MAX),
    help="Prompts that it computes at once.",
)
@with_options(*ENGINE_OPTIONS, *OPTIONS)
def prefill_worker(connection: DeploymentRef, slots: int, **rest: Any) -> None:
    """Start one worker that computes prompts for others. What follows `--` goes to the engine as it stands.

    It takes jobs from the deployment's queue, computes the prompt, and keeps the blocks until the decode worker that
    asked has fetched them. Any number may come and go at any time: without one, decode workers compute their prompts
    themselves. Decode workers ask only if they were started for it: `contrail up` with a prefill group, or
    `contrail worker --remote-prefill`. Model, engine and block size must be those of the decode workers.

    \b
    contrail prefill-worker --data data --name prefill-1 --model tiny --model-path data/models/tiny
    contrail prefill-worker --data data --name prefill-2 --model tiny --engine simulated --slots 4

    On another machine, with a copy of the deployment's key; --listen must be an address of this machine that the
    others reach, and the blocks are fetched from there, too (VLLM_NIXL_SIDE_CHANNEL_HOST says another):

    \b
    contrail prefill-worker --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name gpu-8 --model Qwen/Qwen3-0.6B --listen 10.0.0.8:9100 -- --max-num-batched-tokens 8192
    """
    run_worker(connection, PREFILL, moves_blocks=PREFILL, slots=slots, **rest)
