"""The front end and worker processes of a deployment: the command and the GPUs of each.

Two engines share a GPU only if the deployment file says so.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from api.config.addresses import Address, join_address, split_address
from api.config.data_folder import DataFolder
from api.config.schema import AttachSection, Deployment, WorkerGroup
from api.config.units import delay_s
from api.deployment.preflight import ModelSource
from core.errors import CallerError
from core.events.kv import PREFILL

VARIABLE = "CUDA_VISIBLE_DEVICES"
_CARD = re.compile(r"nvidia\d+")


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs that the environment names, else all that the machine has; none on one without.

    The cards of the machine are counted, and the names of their nodes are ignored: CUDA counts visible cards from 0,
    and a container with the fourth card alone sees the node of that number.
    """
    named = environment.get(VARIABLE)
    if named is not None:
        return tuple(name for each in named.split(",") if (name := each.strip()))
    cards = sum(_CARD.fullmatch(file.name) is not None for file in devices.glob("nvidia*"))
    return tuple(map(str, range(cards)))


class GpuAssignment:
    """Deals out GPUs in turn: when all are given, it begins again."""

    def __init__(self, cards: Sequence[str]) -> None:
        self._count = len(cards)
        self._next = cycle(cards)

    def __repr__(self) -> str:
        return f"<GpuAssignment {self._count} GPUs>"

    def check_room(self, group: WorkerGroup, workers: int) -> None:
        """CallerError if so many workers of the group would have to share GPUs."""
        if group.engine == "vllm" and self._count and not group.devices and workers * group.gpus > self._count:
            raise CallerError(
                f"planner.max is {workers}, and workers of group {group.name!r} take {group.gpus} of the GPUs each: "
                f"{self._count} can be seen; lower it to {self._count // group.gpus}"
            )

    def environment(self, group: WorkerGroup, number: int) -> dict[str, str]:
        """Environment variables of the group's worker of that number; empty if it may use all GPUs.

        CallerError if its engine wants more GPUs than there are.
        """
        if group.engine != "vllm":
            return {}
        if group.devices:
            return {VARIABLE: group.devices[number % len(group.devices)]}
        if not self._count:
            return {}
        needed = group.gpus
        if needed > self._count:
            raise CallerError(f"workers of group {group.name!r} want {needed} GPUs each, and {self._count} can be seen")
        return {VARIABLE: ",".join(islice(self._next, needed))}


FRONTEND, WORKER, PREFILL_WORKER, ATTACH, PLANNER = "frontend", "worker", "prefill-worker", "attach", "planner"
"""Commands of the parts; a prefill worker and one of a running server are of the kind `worker`, too."""
SUPERVISED = "--supervised"
"""Said to a part by `contrail up`: it ends when its standard input does. By hand, that may be anything."""


FRONTEND_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024 * 1024),
}
"""One heap for all threads of a front end: memory that a tokenizing thread frees serves the others (glibc). A body of
MiB lies beside it and is given back: else some hundred large bodies leave the heap with 400 MiB of holes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A part, and the command that starts it."""

    name: str
    kind: str
    what: str
    """For people: `tiny on vllm`."""
    command: tuple[str, ...]
    role: str | None = None
    """Of a worker: `decode` or `prefill`."""
    files: tuple[int, ...] = ()
    """Open sockets that it inherits, by their numbers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it has beside those of this process."""


def _command(kind: str, data: DataFolder, name: str) -> tuple[str, ...]:
    # -P: what lies in the current folder must never be taken for one of our packages
    return (sys.executable, "-P", "-m", "api.cli", kind, "--data", str(data.path), "--name", name, SUPERVISED)


def frontend_specs(deployment: Deployment, data: DataFolder, listeners: Sequence[socket.socket]) -> list[ProcessSpec]:
    """A front end for each socket, all of which have one port; each inherits the others' too."""
    host = deployment.frontend.host
    listen = join_address(host, listeners[0].getsockname()[1])
    files = tuple(listener.fileno() for listener in listeners)
    return [
        ProcessSpec(
            name=(name := f"{FRONTEND}-{number}"),
            kind=FRONTEND,
            what=f"API on {listen}",
            command=(*_command(FRONTEND, data, name), "--listen", listen, *_socket_words(own, files)),
            files=files,
            environment=FRONTEND_ENVIRONMENT,
        )
        for number, own in enumerate(files)
    ]


def _socket_words(own: int, files: Sequence[int]) -> tuple[str, ...]:
    others = (word for each in files if each != own for word in ("--neighbour-fd", str(each)))
    return ("--fd", str(own), *others)


def planner_spec(deployment: Deployment, data: DataFolder) -> ProcessSpec:
    """The planner of a deployment that has one."""
    name = f"{PLANNER}-0"
    planned = deployment.planned_groups
    what = f"{deployment.planner_mode} on {', '.join(each.group.name for each in planned)}"
    words = tuple(
        f"--profile={f'{each.section.label}=' if each.section.label else ''}{Path(file).expanduser().resolve()}"
        for each in planned
        if (file := each.section.profile)
    )
    return ProcessSpec(name=name, kind=PLANNER, what=what, command=(*_command(PLANNER, data, name), *words))


def worker_addresses(group: WorkerGroup) -> list[Address]:
    """The address of each worker of a group. Ports count up from the group's; 0 is a free one for each."""
    return [worker_address(group, number) for number in range(group.count)]


def worker_address(group: WorkerGroup, number: int) -> Address:
    """The address of the group's worker of that number."""
    host, port = split_address(group.listen)
    return Address(host, port + number if port else 0)


def worker_specs(
    group: WorkerGroup,
    source: ModelSource,
    data: DataFolder,
    devices: GpuAssignment,
    addresses: Sequence[Address] | None = None,
) -> list[ProcessSpec]:
    """All workers of a group, at these addresses, or at those of `worker_addresses`."""
    return [
        worker_spec(group, source, data, devices, number, address)
        for number, address in enumerate(addresses or worker_addresses(group))
    ]


def worker_spec(
    group: WorkerGroup, source: ModelSource, data: DataFolder, devices: GpuAssignment, number: int, address: Address
) -> ProcessSpec:
    """The group's worker of that number, at this address."""
    name = f"{group.name}-{number}"
    return ProcessSpec(
        name=name,
        kind=WORKER,
        what=what_of(group, source.name),
        command=(
            *_engine_words(group, source, data, name, number),
            *("--drain-timeout", str(group.drain_timeout_s), *_stall_words(group)),
            *("--prompt-cache-max", group.prompt_cache_max),
            *("--listen", str(address), *(("--advertise", group.advertise) if group.advertise else ())),
        ),
        role=group.role,
        environment=devices.environment(group, number),
    )


def _engine_words(group: WorkerGroup, source: ModelSource, data: DataFolder, name: str, number: int) -> tuple[str, ...]:
    """The command of the group's worker of that number, with its engine."""
    if group.attach is not None:
        words = _server_words(group.attach, number)
        return (
            *_command(ATTACH, data, name),
            *("--model", source.name, *words, *_manner_words(group), *_adapter_words(group)),
        )
    return (
        *_command(PREFILL_WORKER if group.role == PREFILL else WORKER, data, name),
        *("--model", source.name, "--model-path", source.path, "--engine", group.engine),
        *("--engine-args", json.dumps(group.engine_args), *_role_words(group), *_tier_words(group, data)),
        *_adapter_words(group),
    )


def _adapter_words(group: WorkerGroup) -> tuple[str, ...]:
    return (
        *(f"--adapter={each.name}={Path(each.path).expanduser().resolve()}" for each in group.adapters),
        *(("--adapter-replicas", str(group.adapter_replicas)) if group.adapter_replicas else ()),
        *(("--adapter-slots", str(group.adapter_slots)) if group.adapter_slots else ()),
    )


def _server_words(servers: AttachSection, number: int) -> tuple[str, ...]:
    """The options for the worker of that number, whose server and rank they name; folders and files are absolute."""
    server, rank = divmod(number, servers.ranks)
    files = {
        "--server-key-file": servers.key_file,
        "--tokenizer": servers.tokenizer,
        "--adapter-folder": servers.adapter_folder,
    }
    paths = {flag: path and str(Path(path).expanduser().resolve()) for flag, path in files.items()}
    options = {"--url": servers.urls[server], "--server-model": servers.model, "--slots": str(servers.slots)}
    options |= {"--engine": servers.engine, "--cache": servers.cache}
    sizes = {"--context": servers.context, "--block-size": servers.block_size, "--cache-blocks": servers.cache_blocks}
    sized = {flag: str(size) for flag, size in sizes.items() if size}
    ranked = {"--rank": str(rank)} if servers.ranks > 1 else {}
    return _words({**options, **sized, **ranked, **paths})


def what_of(group: WorkerGroup, model: str) -> str:
    """Model and engine of its workers in words, with their role if there are several: `tiny on vllm, prefill`."""
    does = f", {group.role}" if group.role == PREFILL or group.remote_prefill else ""
    return f"{model} on {group.engine}{does}"


def _stall_words(group: WorkerGroup) -> tuple[str, ...]:
    return () if group.engine_stall is None else ("--engine-stall", str(delay_s(group.engine_stall)))


def _tier_words(group: WorkerGroup, data: DataFolder) -> tuple[str, ...]:
    tiers = group.kv_tiers
    host = () if tiers.host is None else ("--host-tier", tiers.host)
    if tiers.fetch:
        host = (*host, "--fetch", "--fetch-gb-per-s", f"{tiers.fetch_gb_per_s:g}")
    if tiers.remote is not None:
        place, size = tiers.remote.s3, tiers.remote.size
        more = {"--remote-endpoint": place.endpoint, "--remote-region": place.region}
        url = f"s3://{place.bucket}/{place.prefix.strip('/')}"
        return (*host, "--remote-tier", url, "--remote-size", size, *_words(more))
    if tiers.disk is None:
        return host
    folder = data.path.absolute() / Path(tiers.disk.path).expanduser()
    shared = ("--disk-shared",) if tiers.disk.shared else ()
    remote = ("--disk-remote",) if tiers.disk.locality == "remote" else ()
    return (*host, "--disk-tier", str(folder), "--disk-size", tiers.disk.size, *shared, *remote)


def _role_words(group: WorkerGroup) -> tuple[str, ...]:
    """The prefill options of the group's command."""
    if group.role == PREFILL:
        return () if group.slots is None else ("--slots", str(group.slots))
    return ("--role", group.role, *(("--remote-prefill",) if group.remote_prefill else ()), *_manner_words(group))


def _manner_words(group: WorkerGroup) -> tuple[str, ...]:
    """The options for parsers, chat template (an absolute path) and aliases."""
    template = group.chat_template and str(Path(group.chat_template).expanduser().resolve())
    options = {
        "--tool-call-parser": group.tool_call_parser,
        "--reasoning-parser": group.reasoning_parser,
        "--chat-template": template,
    }
    return (*_words(options), *(word for name in group.aliases for word in ("--alias", name)))


def _words(options: Mapping[str, str | None]) -> tuple[str, ...]:
    """The options that have a value, as a command line has them."""
    return tuple(word for flag, value in options.items() if value for word in (flag, value))
