"""A deployment as its file describes it: one frozen struct per section, every field with its default.

`api.config.loading` makes one out of file, environment and flags; nothing here reads either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from actors.engines.attached.profile_choice import SERVERS
from actors.engines.attached.server_profile import ASSUMED, AUTO, CACHES, OPENAI, REPORTED, SIZED, TRTLLM, VLLM
from actors.engines.attached.server_profile import SLOTS as SERVER_SLOTS
from actors.engines.engine_adapters import ADAPTERS_MAX, check_adapter_name
from actors.engines.vllm.vllm_args import RANKS_ARGUMENTS
from actors.planning.kubernetes_scale import KINDS
from actors.planning.planner_settings import ACT, ADVISE, HAND, HANDS, KUBERNETES, MODE, MODELS, SUPERVISOR
from actors.prompt_cache.prompt_store import PROMPTS_BYTES_MAX
from actors.transport.server_client import ServerAddress
from api.config.addresses import check_host_name, check_no_login, check_origin, split_address
from api.config.planned_models import PlannedSection, planned_sections, scale_settings
from api.config.units import delay_s, duration_s, size_bytes
from api.config.worker_groups import (
    DISK_ALONE,
    DISK_SIMULATED,
    FETCH_ALONE,
    FETCH_SIMULATED,
    ONE_TIER,
    check_aliases,
    with_remote_prefill,
)
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL, ROLES
from core.ids import NAME
from core.served_names import check_names
from core.settings import RESERVATION_EXPIRES_S, RESERVATIONS_MAX, TEXT_CACHE_BYTES, RoutingSettings
from core.subjects import check_namespace
from projections.scaling.scale_settings import JUDGE, ON, PREFILL_WORKERS, ScaleSettings

Port = Annotated[int, Meta(ge=0, le=65_535)]
Count = Annotated[int, Meta(ge=0, le=1024)]

VERSION = 1
OFF = "off"
JOURNAL_BYTES_MIN = 1 << 20
PAGE_BYTES = 4096
ENGINES = ("vllm", "simulated")
ATTACHED = "attached"
"""The engine of a group with `attach`."""
COUNT = 2
"""Workers of a group, unless told."""
FETCH_GB_PER_S_MIN, FETCH_GB_PER_S_MAX = 0.01, 1000.0
"""Bounds of the speed of fetches."""
ENGINE_KEYS = ("model", "engine_args", "kv_tiers", "devices", "slots")
"""Keys of a group whose engines are started here."""
PLANNER_MODES = (OFF, ADVISE, ACT)
"""Of `planner.mode`: no planner; one that decides and tells; one that starts and drains workers, too."""
NAMES_TAKEN = ("frontend", "planner")
"""Names of parts that are no workers: `frontend-0`, …"""
PREFILL_SLOTS = 1
"""Prompts that a prefill worker computes at once, unless told. A second one would wait behind the first, while
another worker may be idle (`bench.disagg`: its first token 28 % later); an engine that batches short prompts well may
take more."""
SLOTS_MAX = 64
STOP_DELAY_MAX_S = 300
"""A front end that was told to end goes on as before for so long at most."""
ENGINE_STALL_MAX_S = 3600
"""A hang that is found later than that is found by people."""
RESERVATION_EXPIRES_MAX_S = 24 * 3600
"""No answer takes longer."""
DRAIN_TIMEOUT_MAX_S = 3600
"""A worker waits for its requests for so long at most."""
MANNER = ("tool_call_parser", "reasoning_parser", "chat_template")
"""Of a decode group: how front ends are to speak for its model."""


def _check(key: str, parse: Callable[[Any], object], text: object) -> None:
    """The text can be parsed; else ValueError names the key."""
    try:
        parse(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _check_delay(key: str, text: str, most_s: int) -> None:
    """The text is a duration or none, and within the bound; else ValueError names the key."""
    _check(key, delay_s, text)
    if delay_s(text) > most_s:
        raise ValueError(f"{key}: {text} is too long; {most_s}s is the most")


def _check_url(url: str, key: str) -> None:
    try:
        ServerAddress.parse(url)
    except CallerError as error:
        raise ValueError(f"{key}: {error}") from error


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: an unknown key is an error."""


class Tls(Section, frozen=True, kw_only=True):
    """PEM files for a broker or registry behind TLS."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class NatsLogin(Section, frozen=True, kw_only=True):
    """Credentials for NATS: an nkey, user with password, a token, or a creds file; TLS beside any of them."""

    nkey: str | None = None
    """File with the seed of an nkey: it signs, and no secret is sent."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    api_prefix: str | None = None
    """Prefix of JetStream's requests, where the log is in another account; not given, `$JS.API`."""
    tls: Tls | None = None


class LogCredentials(NatsLogin, frozen=True, kw_only=True):
    """Credentials for a given NATS: one for all processes, or one for each role."""

    admin: NatsLogin | None = None
    """Of `contrail up`, which makes the streams."""
    replica: NatsLogin | None = None
    """Of front ends."""
    worker: NatsLogin | None = None
    reader: NatsLogin | None = None
    """Of commands that inspect the log."""

    def login(self, role: str) -> NatsLogin:
        """The credentials of the role: its own, else those of all; TLS files that it does not name are those of all."""
        own: NatsLogin | None = getattr(self, role)
        if own is None:
            return self
        return own if own.tls else msgspec.structs.replace(own, tls=self.tls)


class EtcdAccess(Section, frozen=True, kw_only=True):
    """Credentials for a given etcd."""

    user: str | None = None
    password: str | None = None
    tls: Tls | None = None


class LogSection(Section, frozen=True, kw_only=True):
    """The event plane and the control plane; without addresses both are started privately."""

    nats: tuple[str, ...] = ()
    """URLs of given NATS servers."""
    etcd: tuple[str, ...] = ()
    """HOST:PORT of given etcd servers."""
    nats_port: Port = 0
    """Port of a private NATS; 0 takes a free one."""
    etcd_port: Port = 0
    """The same for etcd's client port."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Replication of the streams: 1 for one server, 3 in production."""
    max_age: str = "7d"
    """Maximum age of the events that the log keeps."""
    max_bytes: str = "8GiB"
    """Maximum disk space of all streams together; reserved at the start."""
    kv_partitions: Annotated[int, Meta(ge=1, le=256)] = 1
    """Over how many streams the workers' cache events are spread."""
    snapshot_every: str = "1h"
    """Interval between snapshots of the folds, from which replicas start; `off` for never."""
    credentials: LogCredentials | None = None
    etcd_credentials: EtcdAccess | None = None

    def __post_init__(self) -> None:
        check_no_login("nats", self.nats, "credentials", "NATS")
        check_no_login("etcd", self.etcd, "etcd_credentials", "ETCD")
        if len(self.etcd) > 1:
            raise ValueError("etcd: one address for now; to reach several members, give that of a balancer")
        _check("max_age", duration_s, self.max_age)
        _check("max_bytes", size_bytes, self.max_bytes)
        if self.snapshot_every != OFF:
            _check("snapshot_every", duration_s, self.snapshot_every)


class FrontendTls(Section, frozen=True, kw_only=True):
    """PEM files by which front ends speak HTTPS."""

    cert: str
    """The certificate, and those that lead from it to one that clients know."""
    key: str | None = None
    """Its private key; not given, it stands in `cert`."""


class RouteSection(Section, frozen=True, kw_only=True):
    """Routing for proxies that send requests to attached servers themselves (`/v1/route`)."""

    token_file: str
    """File with the token that a proxy must send."""
    reservations_max: Annotated[int, Meta(ge=1, le=65_536)] = RESERVATIONS_MAX
    """Reservations that may be open at one front end."""
    expires_after: str = f"{RESERVATION_EXPIRES_S}s"
    """Time from a decision until its reservation expires, if its end is not reported."""

    def __post_init__(self) -> None:
        _check("expires_after", duration_s, self.expires_after)
        if duration_s(self.expires_after) > RESERVATION_EXPIRES_MAX_S:
            raise ValueError(
                f"expires_after: {self.expires_after} is too long; {RESERVATION_EXPIRES_MAX_S}s is the most"
            )

    @property
    def expires_after_s(self) -> int:
        """`expires_after` in seconds."""
        return duration_s(self.expires_after)


class FrontendSection(Section, frozen=True, kw_only=True):
    """The front ends: all on one port."""

    replicas: Annotated[int, Meta(ge=1, le=64)] = 1
    listen: str = "127.0.0.1:8000"
    """HOST:PORT; port 0 takes a free one."""
    advertise: str | None = None
    """Host under which the other parts reach a front end; the listening host if not given."""
    body_bytes_max: Annotated[int, Meta(ge=1024)] = 16 * 2**20
    """Longest request body; 16 MiB hold a prompt of some million tokens."""
    journal_max: str = "256MiB"
    """Maximum size of the decisions that wait on the disk of a front end while the log is unreachable."""
    text_cache_max: str = f"{TEXT_CACHE_BYTES // 2**20}MiB"
    """Memory of a front end for tokens and block hashes of known texts; a thousand talks of 100 000 tokens."""
    keys: str | None = None
    """File of API keys (`contrail keys`); not given, no request needs one."""
    isolate_tenants: bool | None = None
    """True gives each tenant a cache of its own, so that answers and their times reveal no requests of other tenants.
    Not given, they are isolated where keys are asked for."""
    expose_routing: bool = False
    """True if answers name their worker and times in headers beyond loopback; on loopback they always do."""
    cors: tuple[str, ...] = ()
    """Origins of web pages that may send requests; empty forbids all other sites."""
    hosts: tuple[str, ...] = ()
    """Names in the public DNS by which clients may address the API; without any, it answers to none on loopback without
    keys, and to all elsewhere."""
    tls: FrontendTls | None = None
    """Not given, they speak plain HTTP."""
    route: RouteSection | None = None
    """Not given, there is no /v1/route."""
    operator_token_file: str | None = None
    """File with the token that a change of adapters must send; not given, front ends change none."""
    stop_delay: str = "0s"
    """For how long a front end that was told to end is not ready but serves on, so that a balancer stops asking it."""
    drain_timeout: str = "30s"
    """Time for the answers in progress to finish then; later ones end with an error."""

    def __post_init__(self) -> None:
        _check("listen", split_address, self.listen)
        for origin in self.cors:
            _check("cors", check_origin, origin)
        for name in self.hosts:
            _check("hosts", check_host_name, name)
        _check_delay("stop_delay", self.stop_delay, STOP_DELAY_MAX_S)
        _check_delay("drain_timeout", self.drain_timeout, DRAIN_TIMEOUT_MAX_S)
        _check("journal_max", size_bytes, self.journal_max)
        if self.journal_bytes < JOURNAL_BYTES_MIN:
            raise ValueError(f"journal_max: {self.journal_max} is too little; give 1MiB or more")
        _check("text_cache_max", size_bytes, self.text_cache_max)

    @property
    def journal_bytes(self) -> int:
        """`journal_max` in whole pages."""
        return size_bytes(self.journal_max) // PAGE_BYTES * PAGE_BYTES

    @property
    def text_cache_bytes(self) -> int:
        """`text_cache_max` in bytes."""
        return size_bytes(self.text_cache_max)

    @property
    def stop_delay_s(self) -> int:
        """`stop_delay` in seconds."""
        return delay_s(self.stop_delay)

    @property
    def drain_timeout_s(self) -> int:
        """`drain_timeout` in seconds."""
        return delay_s(self.drain_timeout)

    @property
    def host(self) -> str:
        """The listening host."""
        return split_address(self.listen)[0]

    @property
    def port(self) -> int:
        """The listening port."""
        return split_address(self.listen)[1]


class OperationsSection(Section, frozen=True, kw_only=True):
    """The operations listeners of all processes: probes, metrics and state."""

    host: str = "127.0.0.1"
    """The listening host of each process without an address of its own (`--ops`)."""
    token_file: str | None = None
    """File with a token that metrics and state ask for; not given, they ask for nothing."""

    def __post_init__(self) -> None:
        if not self.host or self.host.count(":") == 1:
            raise ValueError(f"host: {self.host!r} is no host without a port: each process takes a free one, or --ops")


class DiskTierSection(Section, frozen=True, kw_only=True):
    """A folder for copies of blocks."""

    path: str
    """In it, each worker has a folder of its name, unless it is `shared`; relative to the data folder."""
    size: str
    """Of each worker's files, or of the files of all that share the folder."""
    shared: bool = False
    """True if all workers of the group use the folder itself, and read what others of them wrote."""
    locality: Literal["local", "remote"] = "local"
    """`remote` if the folder lies on a network file system, for workers of several machines."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path: name a folder")
        if self.locality == "remote" and not self.shared:
            raise ValueError("locality: a remote folder is one of several workers: set `shared: true`, too")
        _check("size", size_bytes, self.size)


class S3Section(Section, frozen=True, kw_only=True):
    """A place in a store that speaks the protocol of S3. Credentials stand in the environment, never here."""

    bucket: str
    prefix: str = ""
    """Begins the keys of all objects there."""
    endpoint: str = ""
    """URL of a store that is not that of AWS; with `http://` nothing is encrypted on the way."""
    region: str = ""
    """Of the bucket; else the variable AWS_REGION says it."""

    def __post_init__(self) -> None:
        if not self.bucket or "/" in self.bucket:
            raise ValueError("bucket: name a bucket; what comes behind it is the `prefix`")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint: {self.endpoint!r} is no URL: give https://HOST:PORT")
        if "@" in self.endpoint:
            raise ValueError("endpoint: credentials stand in the environment (AWS_ACCESS_KEY_ID), not in the URL")


class RemoteTierSection(Section, frozen=True, kw_only=True):
    """A store of objects for copies of blocks, for all workers of the group, on any machine."""

    s3: S3Section
    size: str
    """Of all objects."""

    def __post_init__(self) -> None:
        _check("size", size_bytes, self.size)


class KvTiers(Section, frozen=True, kw_only=True):
    """Slower tiers of a worker's cache, behind its device."""

    host: str | None = None
    """Memory of each worker for copies of its blocks; not given, what leaves the device is lost."""
    disk: DiskTierSection | None = None
    """Behind the host: sealed files, which the worker's next life reads, and others that share them."""
    remote: RemoteTierSection | None = None
    """Behind the host, instead of a disk: sealed objects, which all workers share."""
    fetch: bool = False
    """True if the worker fetches starts of prompts from the hosts of the group's other workers, and they from its.
    Beside a disk or a store, each decision takes the cheaper way."""
    fetch_gb_per_s: float = 1.0
    """The speed at which it does, for decisions."""

    def __post_init__(self) -> None:
        if self.host is not None:
            _check("host", size_bytes, self.host)
        elif self.disk is not None or self.remote is not None:
            raise ValueError(DISK_ALONE)
        elif self.fetch:
            raise ValueError(f"fetch: {FETCH_ALONE}")
        if self.disk is not None and self.remote is not None:
            raise ValueError(ONE_TIER)
        if not FETCH_GB_PER_S_MIN <= self.fetch_gb_per_s <= FETCH_GB_PER_S_MAX:
            raise ValueError(f"fetch_gb_per_s: give {FETCH_GB_PER_S_MIN:g} to {FETCH_GB_PER_S_MAX:g}")


class AdapterSection(Section, frozen=True, kw_only=True):
    """An adapter (LoRA) that workers serve from their start."""

    name: str
    """The name that clients ask for, as that of a model."""
    path: str
    """Folder with `adapter_config.json` and the weights, as PEFT writes them."""

    def __post_init__(self) -> None:
        try:
            check_adapter_name(self.name)
        except CallerError as error:
            raise ValueError(f"name: {error}") from error
        if not self.path:
            raise ValueError("path: name a folder")


class AttachSection(Section, frozen=True, kw_only=True):
    """Running servers, each the engine of one worker, or of one for each of its ranks."""

    urls: tuple[str, ...]
    """The root of each server: `http://HOST:PORT`."""
    model: str = ""
    """The servers' own name of the model; not needed if they serve one."""
    key_file: str | None = None
    """File with the key that they ask for."""
    tokenizer: str | None = None
    """Folder with the model's tokenizer; not needed if the servers' model lies in a folder of this machine."""
    slots: Annotated[int, Meta(ge=1)] = SERVER_SLOTS
    """Requests that each runs at once: its `--max-num-seqs`."""
    ranks: Annotated[int, Meta(ge=1)] = 1
    """Data-parallel ranks of each server: its `--data-parallel-size`, or SGLang's `--dp-size`."""
    engine: str = AUTO
    """`vllm`, `sglang`, `trtllm`, `openai` for any server that takes and returns token ids; `auto` asks each server."""
    cache: str = REPORTED
    """`reported` by cache events, or `assumed` from the prompts that each server is sent."""
    context: Annotated[int, Meta(ge=0)] = 0
    """Longest prompt with answer, in tokens, of a `trtllm` server, or of an `openai` one that does not say it."""
    block_size: Annotated[int, Meta(ge=0)] = 0
    """Tokens of a block of the cache of an `openai` or `trtllm` server; 16 or 32 if not given."""
    cache_blocks: Annotated[int, Meta(ge=0)] = 0
    """Blocks of the cache of an `openai` or `trtllm` server."""
    adapter_folder: str | None = None
    """Folder for copies of adapters, which the servers read at the same path; not given, one among the system's
    temporary files."""

    @property
    def workers(self) -> int:
        """One for each rank of each server."""
        return len(self.urls) * self.ranks

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: give the address of each server once, such as [http://10.0.0.7:8000]")
        for url in self.urls:
            _check_url(url, "urls")
        if self.engine not in SERVERS:
            raise ValueError(f"engine {self.engine!r}: a running server is one of {', '.join(SERVERS)}")
        if self.cache not in CACHES:
            raise ValueError(f"cache {self.cache!r}: there are {', '.join(CACHES)}")
        sized = (self.context, self.block_size, self.cache_blocks)
        if any(sized) and self.engine not in SIZED:
            raise ValueError(
                "context, block_size, cache_blocks: a server of another kind than `openai` and `trtllm` says them"
            )
        if self.engine == TRTLLM and not (self.context and self.cache_blocks and self.tokenizer):
            raise ValueError("engine trtllm: it does not say its sizes; add `context`, `cache_blocks` and `tokenizer`")
        if self.engine == OPENAI and not (self.cache == ASSUMED and self.cache_blocks):
            raise ValueError("engine openai: its cache is not known; add `cache: assumed` and `cache_blocks`")


class WorkerGroup(Section, frozen=True, kw_only=True):
    """Some workers that are alike."""

    name: str = ""
    """Its workers are called `{name}-0`, `{name}-1`, …; the role if not given."""
    model: str = "tiny"
    """`tiny` (built in), a folder, or a name on the Hugging Face hub."""
    served_name: str | tuple[str, ...] | None = None
    """Model name for clients; `model` if not given, of a folder its last part. Of several the first one is its
    name, the others may be asked for as well; one that ends in `*` stands for all names that begin so."""
    count: Count = COUNT
    """With `attach` one for each rank of each of its URLs."""
    role: str = DECODE
    """`decode` answers requests; `prefill` computes prompts for those that do."""
    remote_prefill: bool | None = None
    """Of a decode group: whether it may have long prompts computed by prefill workers. Not given, it may exactly if a
    prefill group of its model stands beside it; say true if prefill workers come from elsewhere."""
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] | None = None
    """Of a prefill group: how many prompts each worker computes at once; PREFILL_SLOTS if not given."""
    engine: str = "vllm"
    engine_args: dict[str, Any] = {}
    """Handed to the engine as it stands, and checked by it."""
    attach: AttachSection | None = None
    """Running servers as the engines of its workers, instead of `model`, `engine` and `engine_args`."""
    kv_tiers: KvTiers = KvTiers()
    """Of a group without remote prefill."""
    adapters: tuple[AdapterSection, ...] = ()
    """Of a group without remote prefill; with `attach`, of vLLM servers of one rank."""
    adapter_replicas: Annotated[int, Meta(ge=1)] | None = None
    """The number of workers that are to serve each of these adapters; all if not given."""
    adapter_slots: Annotated[int, Meta(ge=1, le=ADAPTERS_MAX)] | None = None
    """Each worker serves all adapters, has so many loaded at a time, and loads one at the first request for it; not
    given, all are loaded at the start."""
    devices: tuple[str, ...] = ()
    """Of a vLLM group on GPUs: CUDA_VISIBLE_DEVICES of each worker, in turn (`["0,1", "2,3"]`); not given, each gets as
    many as its engine takes, in turn."""
    tool_call_parser: str | None = None
    """Parser of the model's tool calls, by vLLM's names (`hermes`, …); not given, tools are not offered to it."""
    reasoning_parser: str | None = None
    """Parser of its reasoning, likewise (`deepseek_r1`, …); not given, all is answer."""
    chat_template: str | None = None
    """A jinja file to take instead of the model's own template."""
    drain_timeout: str = "30s"
    """Time for the requests of a worker that drains; later ones continue on other workers."""
    prompt_cache_max: str = f"{PROMPTS_BYTES_MAX // 2**20}MiB"
    """Memory of a worker for the token ids of long prompts, so that front ends send what is new in them."""
    engine_stall: str | None = None
    """Longer than any step of the engine: one that ends none for so long, though requests wait, hangs. Not given, what
    suits the engine (`actors.worker.engine_watchdog`)."""
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    """Host under which front ends and other workers reach these; the listening host if not given."""

    def __post_init__(self) -> None:
        _check("listen", split_address, self.listen)
        _check_delay("drain_timeout", self.drain_timeout, DRAIN_TIMEOUT_MAX_S)
        _check("prompt_cache_max", size_bytes, self.prompt_cache_max)
        if self.engine_stall is not None:
            _check_delay("engine_stall", self.engine_stall, ENGINE_STALL_MAX_S)
            if not delay_s(self.engine_stall):
                raise ValueError("engine_stall: at least 1s")
        self._check_role()
        if self.attach is not None:
            self._use_servers(self.attach)
        self._check_ranks()
        if self.served_name not in {None, ""}:
            _check("served_name", check_names, self.served_names)
        if not self.name:
            msgspec.structs.force_setattr(self, "name", self.role)
        if self.name in NAMES_TAKEN:
            raise ValueError(f"name {self.name!r}: other parts are called that; take another")
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: use 1 to 63 of a-z, 0-9 and '-'")
        if self.devices and (self.engine != "vllm" or not all(each.strip() for each in self.devices)):
            raise ValueError('devices: they are for the engine vllm, such as ["0", "1"]')
        self._check_engine()
        if not self.model:
            raise ValueError("model: give `tiny`, a folder, or a name on the Hugging Face hub")

    def _use_servers(self, servers: AttachSection) -> None:
        """The group has a worker for each rank of each URL, and nothing that is of engines that we start."""
        plain = WorkerGroup()
        given = [key for key in ENGINE_KEYS if getattr(self, key) != getattr(plain, key)]
        if self.engine not in {plain.engine, ATTACHED}:  # a file that was printed has the latter
            given.append("engine")
        if given:
            raise ValueError(f"{given[0]}: the servers of `attach` run already; leave it out")
        if self.role != DECODE or self.remote_prefill:
            raise ValueError("attach: a running server computes no prompts for others, nor has them computed")
        if self.adapters and (servers.ranks > 1 or servers.engine not in {AUTO, VLLM}):
            raise ValueError("adapters: running servers serve them if they are of vLLM and of one rank; leave them out")
        if not self.served_names:
            raise ValueError("served_name: give the name that clients ask for, since `attach` has servers of any model")
        if self.count not in {COUNT, servers.workers}:
            raise ValueError(f"count: there is a worker for each rank of each URL, {servers.workers}; leave it out")
        for key, value in (("count", servers.workers), ("engine", ATTACHED), ("remote_prefill", False)):
            msgspec.structs.force_setattr(self, key, value)

    def _check_engine(self) -> None:
        if self.attach is None and self.engine not in ENGINES:
            raise ValueError(f"engine {self.engine!r}: there are {', '.join(ENGINES)}")
        if (self.kv_tiers.disk or self.kv_tiers.remote) and self.engine == "simulated":
            raise ValueError(f"kv_tiers: {DISK_SIMULATED}")
        if self.kv_tiers.fetch and self.engine == "simulated":
            raise ValueError(f"kv_tiers.fetch: {FETCH_SIMULATED}")
        names = [adapter.name for adapter in self.adapters]
        if len(set(names)) < len(names):
            raise ValueError("adapters: two have one name")
        if self.adapter_replicas is not None and not self.adapters:
            raise ValueError("adapter_replicas: there are no `adapters`; give some, or leave it out")
        if self.adapter_slots is not None and not self.adapters:
            raise ValueError("adapter_slots: there are no `adapters`; give some, or leave it out")
        if self.adapter_slots is not None and self.adapter_replicas is not None:
            raise ValueError("adapter_slots, adapter_replicas: adapters are loaded at requests or placed; give one")

    def _check_role(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r}: there are {', '.join(ROLES)}")
        if self.role == PREFILL and self.remote_prefill is not None:
            raise ValueError("remote_prefill: it is decode groups that say whether they ask for it; leave it out here")
        if self.role != PREFILL and self.slots is not None:
            raise ValueError("slots: only prefill groups have them; a decode engine has its own arguments for that")
        given = [key for key in MANNER if getattr(self, key) is not None]
        if self.role == PREFILL and given:
            raise ValueError(f"{given[0]}: prefill groups answer no requests; say it in the decode group")

    def _check_ranks(self) -> None:
        if self.engine != "vllm":
            return
        for key in RANKS_ARGUMENTS:
            given = self.engine_args.get(key)
            if given is not None and not str(given).isdecimal():
                raise ValueError(f"engine_args.{key}: {given!r} is not a whole number")

    @property
    def drain_timeout_s(self) -> int:
        """`drain_timeout` in seconds."""
        return delay_s(self.drain_timeout)

    @property
    def gpus(self) -> int:
        """Number of GPUs of each engine, for vLLM on GPUs."""
        return prod(max(1, int(self.engine_args.get(key) or 1)) for key in RANKS_ARGUMENTS)

    @property
    def served_names(self) -> tuple[str, ...]:
        """`served_name` as a list; empty if not given."""
        if isinstance(self.served_name, str):
            return (self.served_name,) if self.served_name else ()
        return self.served_name or ()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further names of the model for clients."""
        return self.served_names[1:]

    @property
    def client_name(self) -> str:
        """The name of the model for clients."""
        if self.served_names:
            return self.served_names[0]
        return self.model.rstrip("/").rpartition("/")[2] if is_folder_name(self.model) else self.model


class LinkTlsFiles(Section, frozen=True, kw_only=True):
    """PEM files of the operator for the connections between parts; both ends of each connection check the other's."""

    cert: str
    """This machine's certificate, with those that lead from it to the authority. It must name the host under which its
    workers are registered."""
    key: str
    """Its private key."""
    ca: str
    """The authority of all parts' certificates."""


class LinkSection(Section, frozen=True, kw_only=True):
    """The connections between parts: front ends to workers, prefill workers to decode workers."""

    tls: LinkTlsFiles | None = None
    """Not given, they are not encrypted."""
    old_handshake_until: Annotated[datetime, Meta(tz=True)] | None = None
    """Until then parts of the version before are admitted by their handshake, which sends a static key."""


SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder that Kubernetes gives each pod, with the files of its service account."""
_RESOURCE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class KubernetesSection(Section, frozen=True, kw_only=True):
    """The Deployment or StatefulSet that a planner sizes, and the way to the API server."""

    resource: str
    """`statefulset/NAME` or `deployment/NAME`."""
    namespace: str = ""
    """That of the planner's own pod if not given."""
    server: str = "https://kubernetes.default.svc"
    token_file: str = f"{SERVICE_ACCOUNT}/token"
    ca_file: str = f"{SERVICE_ACCOUNT}/ca.crt"
    """Certificates that may vouch for the server; empty for those of the system."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not _RESOURCE_NAME.fullmatch(self.name):
            raise ValueError(f"resource: {self.resource!r} is neither `statefulset/NAME` nor `deployment/NAME`")
        if self.namespace and not _RESOURCE_NAME.fullmatch(self.namespace):
            raise ValueError(f"namespace: {self.namespace!r} is no name of a namespace")
        _check_url(self.server, "server")

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return self.resource.partition("/")[0]

    @property
    def name(self) -> str:
        """Of the resource."""
        return self.resource.partition("/")[2]


def kubernetes_section(planned: PlannedSection) -> KubernetesSection:
    """The model's section `kubernetes`, parsed. ValueError if there is none, or it cannot be."""
    try:
        return msgspec.convert(planned.kubernetes, KubernetesSection)
    except msgspec.ValidationError as error:
        raise ValueError(f"{planned.place}.{KUBERNETES}: {error}") from error


class PlannedGroup(NamedTuple):
    """A worker group that a planner sizes, and its part of the planner section."""

    group: WorkerGroup
    section: PlannedSection

    @property
    def settings(self) -> ScaleSettings:
        """Of the planner for this group."""
        return self.section.settings

    @property
    def fleet(self) -> str:
        """The key of the group's workers (`core.events.scale.fleet_key`)."""
        return self.section.fleet


class Deployment(Section, frozen=True, kw_only=True):
    """All of it."""

    version: int = VERSION
    namespace: str = "default"
    metrics_file: str | None = None
    """A second place for the Prometheus targets, which every user of the machine may read; the data folder is closed.
    """
    log: LogSection = LogSection()
    frontend: FrontendSection = FrontendSection()
    operations: OperationsSection = OperationsSection()
    workers: tuple[WorkerGroup, ...] = (WorkerGroup(),)
    link: LinkSection = LinkSection()
    routing: dict[str, Any] = {}
    """Fields of `core.settings.RoutingSettings`; the others keep their defaults."""
    planner: dict[str, Any] = {}
    """`mode`, `hand`, `kubernetes` (a KubernetesSection), `profile` (a file), `models`, `prefill`, and fields of
    `projections.scaling.scale_settings.ScaleSettings`; without a mode there is no planner."""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version {self.version}: this Contrail reads version {VERSION}")
        check_namespace(self.namespace)
        names = [group.name for group in self.workers]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two worker groups have one name, {twice[0]!r}: give each a `name` of its own")
        check_aliases(self.workers)
        msgspec.structs.force_setattr(self, "workers", with_remote_prefill(self.workers))
        RoutingSettings.parse(self.routing)
        self._check_planner()

    def _check_planner(self) -> None:
        mode = self.planner_mode
        if mode not in PLANNER_MODES:
            raise ValueError(f"planner.mode {mode!r}: there are {', '.join(PLANNER_MODES)}")
        self._check_hand()
        if mode == OFF:
            return
        if MODELS in self.planner:
            self._check_models()
        elif any(self._count_of_role(role) > 1 for role in ROLES):
            raise ValueError(
                "planner: it sizes one worker group of each role; give a file without others, or the names of several "
                f"models below `planner.{MODELS}`"
            )
        if not self.planned_groups:
            raise ValueError("planner: there is no worker group that answers requests")
        self._check_prefill_sections()
        for each in self.planned_groups:
            self._check_planned(each)
        if len(self.planned_groups) > 1:
            self._check_devices()

    def _check_hand(self) -> None:
        if self.planner_hand not in HANDS:
            raise ValueError(f"planner.hand {self.planner_hand!r}: there are {', '.join(HANDS)}")
        for section in planned_sections(self.planner):
            if section.role == DECODE and (self.planner_hand == KUBERNETES or section.kubernetes):
                kubernetes_section(section)  # raises if it cannot be

    def _check_prefill_sections(self) -> None:
        there = [each.section for each in self.planned_groups]
        given = [each for each in planned_sections(self.planner) if each.is_given and each not in there]
        is_unused = PREFILL_WORKERS in self.planner and all(each.role == DECODE for each in there)
        if is_unused or given:
            place = f"planner.{PREFILL_WORKERS}" if is_unused else given[0].place
            raise ValueError(f"{place}: there is no prefill group; add one, or leave it out")

    def _count_of_role(self, role: str) -> int:
        return sum(group.role == role for group in self.workers)

    def _check_models(self) -> None:
        """Each named model has one group of decode workers, and one of prefill workers at most."""
        served = {role: [group.client_name for group in self.workers if group.role == role] for role in ROLES}
        for section in planned_sections(self.planner):
            count = served[section.role].count(section.model)
            if count > 1 or (not count and section.role == DECODE):
                groups = "several worker groups serve" if count else "no worker group serves"
                there = ", ".join(sorted(set(served[DECODE])))
                raise ValueError(f"planner.{MODELS}.{section.model}: {groups} it; there are {there}")

    def _check_devices(self) -> None:
        """The least workers of all groups fit into the devices, and so do those with which they begin."""
        devices = self.scale_settings.devices_max
        least = sum(each.settings.min * each.group.gpus for each in self.planned_groups)
        if devices and least > devices:
            raise ValueError(f"planner.devices_max: the least workers of all groups take {least}, not {devices}")
        begin = sum(each.group.count * each.group.gpus for each in self.planned_groups)
        if devices and begin > devices and self.planner_mode == ACT and self.planner_hand == SUPERVISOR:
            raise ValueError(f"planner.devices_max: the groups begin with {begin} (`count`), not {devices}")

    def _check_planned(self, planned: PlannedGroup) -> None:
        group, settings = planned.group, planned.settings
        by_us = self.planner_mode == ACT and self.planner_hand == SUPERVISOR
        if by_us and group.attach is not None:
            raise ValueError("planner.mode: nobody here can start the servers of `attach`; take `advise`")
        if by_us and not max(1, settings.min) <= group.count <= settings.max:
            raise ValueError(
                f"{planned.section.place}: the group {group.name} begins with {group.count} workers (`count`), which "
                f"must lie between min, at least 1, and max: {settings.min} and {settings.max}"
            )
        if group.role == PREFILL:
            if self.planner_hand == KUBERNETES:
                kubernetes_section(planned.section)  # raises if it cannot be
            if settings.judge == ON:
                raise ValueError(f"planner.{JUDGE}: a judge simulates no prefill workers; leave it out")
            return
        least_ms = (settings.startup_s + settings.period_s) * 1000
        is_from_zero = group.client_name in self.models_from_zero
        if is_from_zero and self.routing_settings.queue_wait_max_ms < least_ms:
            raise ValueError(
                f"planner.min: with 0, the first request waits until a worker has started, some {least_ms} ms by "
                f"startup_s and period_s; `routing: {{queue_wait_max_ms: {self.routing_settings.queue_wait_max_ms}}}` "
                "lets it wait for less"
            )

    @property
    def planner_mode(self) -> str:
        """One of PLANNER_MODES."""
        return str(self.planner.get(MODE, OFF))

    def with_planner(self) -> Deployment:
        """The same; where the file has no planner, with one that advises by the default settings. CallerError if no
        planner can size its worker groups."""
        if self.planner_mode != OFF:
            return self
        try:
            return msgspec.structs.replace(self, planner={**self.planner, MODE: ADVISE})
        except ValueError as error:
            raise CallerError(str(error)) from error

    @property
    def scale_settings(self) -> ScaleSettings:
        """The settings in the planner section that all models have in common."""
        return scale_settings(self.planner)

    @property
    def planner_hand(self) -> str:
        """One of HANDS: the program that starts and drains workers as the planner decides."""
        return str(self.planner.get(HAND, SUPERVISOR))

    @property
    def planned_groups(self) -> tuple[PlannedGroup, ...]:
        """The worker groups that a planner sizes, each with its part of the section: the first group of each role, or
        those of the models that are named. Prefill workers come behind the decode workers of their model."""
        found: list[PlannedGroup] = []
        for section in planned_sections(self.planner):
            groups = (group for group in self.workers if group.role == section.role)
            group = next((group for group in groups if section.model in {"", group.client_name}), None)
            found += [] if group is None else [PlannedGroup(group, section)]
        return tuple(found)

    @property
    def models_from_zero(self) -> frozenset[str]:
        """Models that may have no worker, since a planner starts the first one."""
        if self.planner_mode != ACT:
            return frozenset()
        decode = [each for each in self.planned_groups if each.group.role == DECODE]
        return frozenset(each.group.client_name for each in decode if not each.settings.min)

    @property
    def routing_settings(self) -> RoutingSettings:
        """The routing section, parsed."""
        return RoutingSettings.parse(self.routing)


def keys_at(place: str) -> tuple[str, ...]:
    """The keys of the section at this place of a deployment file, as msgspec writes places: `.frontend.tls`,
    `.workers[0]`, empty for the whole. Empty if no section has the place."""
    here: msgspec.inspect.Type = msgspec.inspect.type_info(Deployment)
    for key in re.findall(r"\w+", re.sub(r"\[[^]]*\]", "", place)):
        fields = here.fields if isinstance(here, msgspec.inspect.StructType) else ()
        here = next((_section(each.type) for each in fields if each.name == key), msgspec.inspect.AnyType())
    return tuple(each.name for each in here.fields) if isinstance(here, msgspec.inspect.StructType) else ()


def _section(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """The section among the types that a key may have; the item's of a list."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((each for each in kind.types if isinstance(each, msgspec.inspect.StructType)), kind)
    return kind.item_type if isinstance(kind, msgspec.inspect.VarTupleType) else kind


def is_folder_name(model: str) -> bool:
    """True if a model is written as a path; names on the hub have at most one slash and no dot before it."""
    return model.startswith(("/", "./", "../", "~"))
