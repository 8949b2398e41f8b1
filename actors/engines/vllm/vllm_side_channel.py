"""vLLM's NIXL side channel: the port on which an engine tells others how to reach its blocks, and what it says there.

1. An engine whose port is taken hangs in its start instead of failing. So the port is reserved before: a bound socket
   that does not listen keeps others away and lets the engine in (both set SO_REUSEADDR, as ZeroMQ does).
2. What the engine says of itself is asked of the engine: the digest by which it refuses peers, and the bytes of its
   blocks. The form is that of connector version 14; an engine that answers otherwise is not used for transfers.
3. vLLM listens at one host and tells it to others: across machines that is VLLM_NIXL_SIDE_CHANNEL_HOST.
4. Both ends prove the deployment's key (`secure`), in the engine as well (`nixl_connector`).
5. UCX, which moves the blocks, asks for no credential and listens on every network interface. On a loopback host it is
   bound to the loopback interface, so that no other machine can read blocks.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq
from zmq.utils import z85

from actors.engines.vllm import vllm_args
from core.errors import CallerError, EngineDead
from core.kv_transfer import KvAddress

HOST_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_HOST"
PORT_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_PORT"
KEY_VARIABLE = "CONTRAIL_TRANSFER_KEY"
"""The key of side channels, in the environment of the engine's processes; hex digits."""
UCX_VARIABLE = "UCX_NET_DEVICES"
HOST = "127.0.0.1"
CURVE_KEY_BYTES = 32
PROVED = "proved side channel"
"""Part of a layout: engines of an earlier version, which prove nothing, are not asked for blocks in vain."""
LOOPBACK_DEVICE = "lo"
ASK_TIMEOUT_MS = 10_000
"""Bound on the answer of a running engine about its blocks."""
RDMA_DEVICES = Path("/sys/class/infiniband")
RDMA = frozenset({"all", "ib", "rc", "rc_x", "rc_v", "rc_mlx5", "rc_verbs", "dc", "dc_x", "ud", "ud_x", "ud_v"})
SHARED_MEMORY = frozenset({"all", "sm", "shm", "mm", "posix", "sysv", "cma", "xpmem", "knem", "cuda_ipc", "rocm_ipc"})
"""UCX's names of transports, and of groups of them."""


class NixlSideChannel:
    """A host and a port that are this engine's, from now until `close`; the engine may listen there meanwhile."""

    def __init__(self, environment: Mapping[str, str], key: bytes = b"") -> None:
        """As the environment says, else a free port of this machine alone; engines with the same key reach each other.
        CallerError if that cannot be had."""
        self.key = key
        self.host = environment.get(HOST_VARIABLE) or HOST
        port = environment.get(PORT_VARIABLE, "")
        if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
            raise CallerError(f"{PORT_VARIABLE} is {port!r}: set it to a port number, or unset it")
        self._claim = socket.socket(socket.AF_UNIX)
        self._socket = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((self.host, int(port or 0)))
            address, self.port = self._socket.getsockname()[:2]
            self._claim.bind(f"\0contrail-side-channel-{self.port}")  # two engines that start at once both could bind
        except OSError as error:
            self.close()
            raise CallerError(
                f"the engine cannot listen on {self.host}:{port or 'any port'} to have blocks fetched ({error}): set "
                f"{HOST_VARIABLE} to an address of this machine and {PORT_VARIABLE} to a free port, or unset them"
            ) from error

        self.is_local = not environment.get(UCX_VARIABLE) and ip_address(address).is_loopback
        """True if only engines on this machine can fetch blocks."""

    def __repr__(self) -> str:
        return f"<NixlSideChannel {self.host}:{self.port}>"

    def environment(self) -> dict[str, str]:
        """Variables for the engine's environment while its processes start."""
        variables = {HOST_VARIABLE: self.host, PORT_VARIABLE: str(self.port), KEY_VARIABLE: self.key.hex()}
        return variables | ({UCX_VARIABLE: LOOPBACK_DEVICE} if self.is_local else {})

    def close(self) -> None:
        """The port is free, unless the engine listens there."""
        self._socket.close()
        self._claim.close()


class Sizes(NamedTuple):
    """Over how many ranks an engine's blocks are spread, by the connector's count."""

    tp: int
    dcp: int
    pp: int


class BlockFacts(NamedTuple):
    """An engine's facts about its blocks."""

    engine_id: str
    compatibility: str
    """It takes blocks only from engines with the same."""
    attention: str
    order: str
    """The order of keys and values in a block."""
    block_bytes: int
    """Of one block in all layers of all ranks."""


class _Handshake(msgspec.Struct):
    compatibility_hash: str
    agent_metadata_bytes: bytes


class _Agent(msgspec.Struct):
    engine_id: str
    block_lens: list[int]
    kv_cache_layout: str
    attn_backend_name: str
    physical_blocks_per_logical_kv_block: int


def secure(channel: zmq.Socket[bytes], key: bytes, *, listens: bool) -> None:
    """The socket speaks CURVE: only ends with the key understand each other.

    The listener's key pair is derived from the key. Its public half is published nowhere and never sent, so that a
    client proves the key by having it, and the listener by having the other half.
    """
    secret = z85.encode(hashlib.blake2b(b"side channel", key=key, digest_size=CURVE_KEY_BYTES).digest())
    if listens:
        channel.curve_server = True
        channel.curve_secretkey = secret
    else:
        channel.curve_serverkey = zmq.curve_public(secret)
        channel.curve_publickey, channel.curve_secretkey = zmq.curve_keypair()


def ask(host: str, port: int, sizes: Sizes, key: bytes) -> BlockFacts:
    """The block facts of the engine at this address; blocks briefly. EngineDead without a known answer."""
    facts: BlockFacts | None = None
    block_bytes = 0
    try:
        with zmq.Context() as context, context.socket(zmq.REQ) as requests:
            requests.linger = 0
            requests.rcvtimeo = ASK_TIMEOUT_MS
            secure(requests, key, listens=False)
            requests.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
            for pp, tp in product(range(sizes.pp), range(sizes.tp)):
                requests.send(msgspec.msgpack.encode((b"get_meta_msg", pp, tp)))
                handshake = msgspec.msgpack.decode(requests.recv_multipart()[0], type=_Handshake)
                agent = msgspec.msgpack.decode(handshake.agent_metadata_bytes, type=_Agent)
                block_bytes += sum(agent.block_lens) * agent.physical_blocks_per_logical_kv_block
                facts = BlockFacts(
                    agent.engine_id,
                    handshake.compatibility_hash,
                    agent.attn_backend_name,
                    agent.kv_cache_layout,
                    block_bytes,
                )
    except (zmq.ZMQError, msgspec.DecodeError) as error:
        raise EngineDead(f"the engine does not say what its blocks are: {error}") from error
    assert facts is not None
    return facts


def address(channel: NixlSideChannel, config: Any, version: str) -> tuple[KvAddress, int]:
    """Address from which an engine's blocks can be pulled, and the number of ranks they are spread over; `config` is
    vLLM's. Asks the engine, which is up. `layout` holds all that vLLM compares, and the model's contents, which it does
    not.

    Asks the engine, which is up. `layout` holds all that vLLM compares and what it does not: the model's contents.
    """
    parallel, model = config.parallel_config, config.model_config
    dcp = parallel.decode_context_parallel_size
    sizes = Sizes(max(parallel.tensor_parallel_size, dcp), dcp, parallel.pipeline_parallel_size)
    facts = ask(channel.host, channel.port, sizes, channel.key)
    digest = vllm_args.model_digest(model.model, model.hf_config.to_json_string(), model.revision)
    layout = (
        f"{facts.attention} {facts.order}",
        f"{model.dtype}, cache {config.cache_config.cache_dtype}",
        f"vllm {version} {facts.compatibility[:16]}",
        f"model {digest}",
        PROVED,
    )
    found = KvAddress(
        engine_id=facts.engine_id,
        host=channel.host,
        port=channel.port,
        layout="; ".join(layout),
        block_bytes=facts.block_bytes,
        transport=offered(os.environ.get("UCX_TLS", ""), [] if channel.is_local else rdma_devices()),
        details={"tp_size": sizes.tp, "dcp_size": sizes.dcp, "pp_size": sizes.pp},
    )
    return found, sizes.tp * sizes.pp


def rdma_devices() -> list[str]:
    """Names of this machine's RDMA devices."""
    return sorted(device.name for device in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []


def transport(ucx_tls: str, devices: list[str], *, same_host: bool) -> str:
    """The best way (`core.kv_transfer.TRANSPORTS`) that UCX may take between two engines with this UCX_TLS.

    Which it really took it does not say; on the same host it takes shared memory even where RDMA could be had.
    """
    allowed = _allowed(ucx_tls or "all")
    if same_host and allowed & SHARED_MEMORY:
        return "shared_memory"
    if devices and allowed & RDMA:
        return "rdma"
    return "tcp"


def offered(ucx_tls: str, devices: list[str]) -> str:
    """The best way (`core.kv_transfer.TRANSPORTS`) by which anybody at all may fetch from an engine with this
    UCX_TLS."""
    far = transport(ucx_tls, devices, same_host=False)
    return far if far == "rdma" else transport(ucx_tls, devices, same_host=True)


def _allowed(ucx_tls: str) -> frozenset[str]:
    """Of the names of both groups; a leading ^ takes away what it names."""
    names = {name.strip().lstrip("\\").partition(":")[0] for name in ucx_tls.removeprefix("^").split(",")}
    if ucx_tls.startswith("^"):
        return frozenset((RDMA | SHARED_MEMORY) - names - {"all"})
    return frozenset(names)
