"""vLLM's NIXL connector with a proved side channel; vLLM imports this module in every process of an engine.

vLLM's own side channel tells every client how to reach the engine's memory, and ends at one malformed message. Here
both ends speak ZeroMQ's CURVE, with keys that are derived from the deployment's (`secure`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from actors.engines.vllm.vllm_side_channel import KEY_VARIABLE, secure

CONNECTOR = "NixlConnector"
SOCKETS = "zmq_ctx"
"""vLLM's name of the function that makes the socket of the listener, and that of a client."""


@contextmanager
def proved_socket(kind: int, address: str) -> Iterator[zmq.Socket[bytes]]:
    """A listener (ROUTER) or a client (REQ) of a side channel, which reaches only engines of the deployment."""
    context = zmq.Context()
    try:
        channel = context.socket(kind)
        secure(channel, bytes.fromhex(os.environ[KEY_VARIABLE]), listens=kind == zmq.ROUTER)
        channel.ipv6 = "[" in address
        if kind == zmq.ROUTER:
            channel.bind(address)
        else:
            channel.connect(address)
        yield channel
    finally:
        context.destroy(linger=0)


def __getattr__(name: str) -> Any:
    """vLLM's connector, for which vLLM asks this module by name; side channels are proved from then on."""
    if name != CONNECTOR:
        raise AttributeError(name)
    from vllm.distributed.kv_transfer.kv_connector.v1 import nixl  # noqa: PLC0415 - vLLM is imported late

    for module in (nixl.base_scheduler, nixl.base_worker):
        if not hasattr(module, SOCKETS):
            raise RuntimeError(f"{module.__name__} has no function {SOCKETS}: its side channel would not be proved")
        setattr(module, SOCKETS, proved_socket)
    return nixl.NixlConnector
