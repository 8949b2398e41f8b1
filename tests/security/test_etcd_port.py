"""A local user waits for the private etcd to die, takes its port, and asks its clients for their password."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

from api.config.addresses import split_address
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.loopback_ports import is_free, reserve
from tests.e2e.deployment import up
from tests.fixtures.eventually import eventually
from tests.fixtures.local_user import LocalUser

IMPERSONATE = """
import socket, sys, time
port, until_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print("tries", flush=True)
while time.monotonic() < until_s:
    with socket.socket() as fake:
        fake.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            fake.bind(("127.0.0.1", port))
            fake.listen()
        except OSError:
            continue
        fake.settimeout(10)
        while True:
            peer, _ = fake.accept()
            peer.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # HTTP/2: settings, all at their defaults
            peer.settimeout(2)
            heard = b""
            try:
                while piece := peer.recv(4096):
                    heard += piece
                    if b"Authenticate" in heard and b"root" in heard:
                        print(heard.hex(), flush=True)
                        sys.exit()
            except TimeoutError:
                continue
print("never took it")
"""
"""Listens at the port as soon as it can, and prints the bytes of the first client that logs in."""


async def test_the_port_of_a_dead_etcd_cannot_be_taken(tmp_path: Path, local_user: LocalUser) -> None:
    data = tmp_path / "data"
    async with up(data, "--engine", "simulated", "--workers", "1") as running:
        etcd = running.part("etcd")
        password = json.loads((data / "etcd" / "etcd.json").read_text())["password"]
        thief = local_user.start(IMPERSONATE, str(split_address(etcd["address"])[1]), "5")
        assert thief.stdout is not None
        assert thief.stdout.readline() == "tries\n"
        os.kill(etcd["pid"], signal.SIGKILL)
        output, errors = await asyncio.to_thread(thief.communicate, timeout=40)
        assert password.encode().hex() not in output, "it has the password"
        assert output == "never took it\n", errors
        await eventually(lambda: running.part("etcd")["pid"] != etcd["pid"], "the next etcd")
        assert running.part("etcd")["address"] == etcd["address"]


async def test_a_server_that_is_to_start_again_keeps_its_port(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    port = split_address(server.endpoint)[1]
    await server.stop(keep_port=True)
    assert not is_free(port)
    await server.start()
    assert split_address(server.endpoint)[1] == port
    await server.stop()
    assert is_free(port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert reserve(other.getsockname()[1]) is None
