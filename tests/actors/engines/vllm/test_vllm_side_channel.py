"""Where an engine tells how its blocks are reached: its port is had before it starts, the transport is known."""

from __future__ import annotations

import socket

import pytest
import zmq

from actors.engines.vllm.vllm_side_channel import (
    HOST_VARIABLE,
    KEY_VARIABLE,
    PORT_VARIABLE,
    UCX_VARIABLE,
    NixlSideChannel,
    Sizes,
    ask,
    offered,
    transport,
)
from core.errors import CallerError, EngineDead


def listening() -> socket.socket:
    """Somebody else's server."""
    server = socket.create_server(("127.0.0.1", 0))
    server.listen()
    return server


def test_a_free_port_is_found_and_kept() -> None:
    """Two engines get two ports; ZeroMQ can listen on one while it is kept, as the engine will."""
    one, other = NixlSideChannel({}), NixlSideChannel({})
    assert one.port != other.port
    assert one.environment() == {
        HOST_VARIABLE: "127.0.0.1",
        PORT_VARIABLE: str(one.port),
        KEY_VARIABLE: "",
        UCX_VARIABLE: "lo",
    }
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.bind(f"tcp://{one.host}:{one.port}")
    one.close()
    other.close()


@pytest.mark.parametrize(
    "environment",
    [{HOST_VARIABLE: "0.0.0.0"}, {UCX_VARIABLE: "eth0"}, {HOST_VARIABLE: "localhost", UCX_VARIABLE: "all"}],
)
def test_devices_of_the_user_and_of_other_machines_are_left_alone(environment: dict[str, str]) -> None:
    channel = NixlSideChannel(environment)
    assert UCX_VARIABLE not in channel.environment()
    assert not channel.is_local
    channel.close()


def test_a_port_in_use_is_said() -> None:
    """A port where somebody listens is the caller's error before anything starts; so is one that is no port."""
    with listening() as server:
        port = server.getsockname()[1]
        with pytest.raises(CallerError, match=f"{port}.*{PORT_VARIABLE} to a free port"):
            NixlSideChannel({PORT_VARIABLE: str(port)})
    NixlSideChannel({PORT_VARIABLE: str(port)}).close()
    for wrong in ("many", "0", "70000", "-1"):
        with pytest.raises(CallerError, match=PORT_VARIABLE):
            NixlSideChannel({PORT_VARIABLE: wrong})
    with pytest.raises(CallerError, match=HOST_VARIABLE):
        NixlSideChannel({HOST_VARIABLE: "192.0.2.1"})


def test_two_that_start_with_the_same_port() -> None:
    """The second is told, though nobody listens yet; once the first gave up, the port can be had."""
    one = NixlSideChannel({})
    with pytest.raises(CallerError, match="in use"):
        NixlSideChannel({PORT_VARIABLE: str(one.port)})
    one.close()
    NixlSideChannel({PORT_VARIABLE: str(one.port)}).close()


def test_silent_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that says nothing of its blocks is of no use."""
    monkeypatch.setattr("actors.engines.vllm.vllm_side_channel.ASK_TIMEOUT_MS", 100)
    with listening() as server, pytest.raises(EngineDead, match="what its blocks are"):
        ask("127.0.0.1", server.getsockname()[1], Sizes(1, 1, 1), b"")


@pytest.mark.parametrize(
    ("ucx_tls", "devices", "near", "far", "best"),
    [
        ("", [], "shared_memory", "tcp", "shared_memory"),
        ("all", ["mlx5_0"], "shared_memory", "rdma", "rdma"),
        ("tcp", [], "tcp", "tcp", "tcp"),
        ("tcp", ["mlx5_0"], "tcp", "tcp", "tcp"),
        ("tcp,sm,self", ["mlx5_0"], "shared_memory", "tcp", "shared_memory"),
        ("rc,cuda_copy", ["mlx5_0"], "rdma", "rdma", "rdma"),
        ("rc,tcp", [], "tcp", "tcp", "tcp"),
        ("^sm,shm,mm,posix,sysv,cma,xpmem,knem,cuda_ipc,rocm_ipc", [], "tcp", "tcp", "tcp"),
        ("^rc", ["mlx5_0"], "shared_memory", "rdma", "rdma"),
    ],
)
def test_transport(ucx_tls: str, devices: list[str], near: str, far: str, best: str) -> None:
    """What UCX may use on the same host, between two, and what is told of an engine."""
    assert transport(ucx_tls, devices, same_host=True) == near
    assert transport(ucx_tls, devices, same_host=False) == far
    assert offered(ucx_tls, devices) == best
