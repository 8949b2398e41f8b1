"""A local user waits for a worker to die, and takes its port: the front ends would greet it with prompts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from io import StringIO
from pathlib import Path

import pytest
from starlette.applications import Starlette

from api.cli.startup_progress import PlainProgress
from api.config.addresses import split_address
from api.config.data_folder import DataFolder
from api.config.schema import Deployment, WorkerGroup
from api.deployment.launcher import Launcher
from api.deployment.preflight import ModelSource
from api.server.http_server import HttpServer
from api.server.sockets import close_all, open_listeners, reserve
from core.errors import CallerError
from tests.e2e.deployment import up
from tests.fixtures.eventually import eventually
from tests.fixtures.local_user import LocalUser

TAKE = """
import socket, sys, time
port, until_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
options = [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
print("tries", flush=True)
while time.monotonic() < until_s:
    for chosen in options:
        with socket.socket() as thief:
            for option in chosen:
                thief.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                thief.bind(("127.0.0.1", port))
                thief.listen()
            except OSError:
                continue
            print("took it", flush=True)
            thief.settimeout(10)
            peer, _ = thief.accept()
            print("heard", peer.recv(4096)[:400], flush=True)
            sys.exit()
print("never took it")
"""
"""Binds the port as soon as it can, by any option, and prints the first bytes of the first client."""


async def test_the_port_of_a_dead_worker_cannot_be_taken(tmp_path: Path, local_user: LocalUser) -> None:
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as running:
        worker = running.part("decode-0")
        port = split_address(worker["address"])[1]
        with local_user.start(TAKE, str(port), "6") as thief:
            assert thief.stdout is not None
            assert thief.stdout.readline() == "tries\n"
            os.kill(worker["pid"], signal.SIGKILL)
            await eventually(lambda: _is_refused(port), "the dead worker's port to refuse", timeout_s=5)
            output, errors = thief.communicate(timeout=30)
        assert output == "never took it\n", errors
        await eventually(running.workers, "the next worker")
        await eventually(lambda: running.part("decode-0")["address"], "its address in run.json")
        assert running.part("decode-0")["address"] == worker["address"]
        await eventually(lambda: running.state("frontend-0")["workers"], "the front end to know it")


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the worker died while this connection waited to be accepted
        return False
    return False


def test_a_reserved_port_refuses_clients_and_other_users(local_user: LocalUser) -> None:
    with reserve("127.0.0.1", 0) as kept:
        port = kept.getsockname()[1]
        assert _is_refused(port)
        assert local_user.run(TAKE, str(port), "0.3").endswith("never took it\n")
        with pytest.raises(CallerError, match=f"port {port} is in use"):  # neither can a second deployment of ours
            reserve("127.0.0.1", port)
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind(("127.0.0.1", port))
            worker.listen()
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        assert _is_refused(port)


def test_a_worker_listens_at_exactly_the_address_that_is_kept(tmp_path: Path) -> None:
    """A name may stand for several addresses, of which one is kept."""
    group = WorkerGroup(count=2, listen="localhost:0", engine="simulated")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wanted = Deployment(workers=(group,))
        launch = Launcher(wanted, DataFolder(tmp_path), [listener], PlainProgress(StringIO()))
        launch._plan([ModelSource("tiny", "/models/tiny")])
    commands = [part.spec.command for part in launch._workers]
    listens = [split_address(command[command.index("--listen") + 1]) for command in commands]
    assert listens == [kept.getsockname()[:2] for kept in launch._reserved]
    assert len(set(listens)) == 2
    close_all(launch._reserved)


@pytest.mark.parametrize("options", [(socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)])
def test_connections_of_an_earlier_run_keep_no_port_from_being_reserved(options: tuple[int, ...]) -> None:
    with socket.socket() as earlier:
        for option in options:
            earlier.setsockopt(socket.SOL_SOCKET, option, 1)
        earlier.bind(("127.0.0.1", 0))
        _leave_time_wait(earlier)
        port = earlier.getsockname()[1]
    reserve("127.0.0.1", port).close()


async def test_connections_of_an_earlier_front_end_keep_no_port_from_being_taken_again() -> None:
    (listener,) = open_listeners("127.0.0.1", 0, 1)
    server = HttpServer(Starlette(), listener)
    port = (await server.start()).port
    client = socket.create_connection(("127.0.0.1", port))
    await server.stop(grace_s=0.1)
    await asyncio.to_thread(client.recv, 1)
    client.close()
    close_all(open_listeners("127.0.0.1", port, 1))


def _leave_time_wait(listener: socket.socket) -> None:
    """A connection stays in TIME_WAIT: the accepted side closed it first."""
    listener.listen()
    with socket.create_connection(listener.getsockname()) as client:
        listener.accept()[0].close()
        assert client.recv(1) == b""


def test_the_port_of_the_api_cannot_be_taken_before_a_front_end_listens(local_user: LocalUser) -> None:
    listeners = open_listeners("127.0.0.1", 0, 2)
    try:
        assert len({listener.getsockname() for listener in listeners}) == 1
        port = str(listeners[0].getsockname()[1])
        assert local_user.run(TAKE, port, "0.3").endswith("never took it\n")
    finally:
        close_all(listeners)
