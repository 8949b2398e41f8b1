"""A NATS cluster of three servers on loopback, of which one at a time may be killed."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import sysconfig
from pathlib import Path

from core.errors import PeerError
from streams.embedded.loopback_ports import HOST, free_port
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_credentials import NatsCredentials

NODES = 3
READY_S = 60.0
STOP_S = 10.0


class Cluster:
    """Started and stopped as a whole; its nodes are killed and started again one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients = [free_port() for _ in range(NODES)]
        self._routes = [free_port() for _ in range(NODES)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * NODES
        self.credentials = NatsCredentials(user="contrail", password=secrets.token_hex(16))

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [f"nats://{HOST}:{port}" for port in self._clients]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the nodes that run, by name."""
        return {f"n{n}": process.pid for n, process in enumerate(self._processes) if process and process.poll() is None}

    async def start(self) -> None:
        """JetStream has a leader and answers."""
        for node in range(NODES):
            self.start_node(node)
        async with asyncio.timeout(READY_S):
            while not await self._answers():
                await asyncio.sleep(0.2)

    def start_node(self, node: int) -> None:
        """The server runs; it need not have joined yet."""
        folder = self._folder / f"n{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.conf").write_text(json.dumps(self._config(node, folder)))
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        self._processes[node] = subprocess.Popen(
            [binary, "--config", folder / "server.conf"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill_node(self, node: int) -> None:
        """The server is dead, without having cleaned up."""
        process = self._processes[node]
        assert process is not None
        process.kill()
        process.wait()

    async def stop(self) -> None:
        """No server runs."""
        for process in filter(None, self._processes):
            process.send_signal(signal.SIGTERM)
        for process in filter(None, self._processes):
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def _answers(self) -> bool:
        connection = NatsClient(self.urls, self.credentials, "cluster start")
        try:
            await connection.open()
            await connection.call("$JS.API.INFO", None, "JetStream")
        except PeerError:
            return False
        finally:
            await connection.close()
        return True

    def _config(self, node: int, folder: Path) -> dict[str, object]:
        user, password = self.credentials.user, self.credentials.password
        return {
            "server_name": f"n{node}",
            "host": HOST,
            "port": self._clients[node],
            "log_file": str(folder / "server.log"),
            "authorization": {"user": user, "password": password},
            "jetstream": {"store_dir": str(folder), "max_file_store": 16 << 30, "sync_interval": "1s"},
            "cluster": {
                "name": "chaos",
                "listen": f"{HOST}:{self._routes[node]}",
                "routes": [f"nats://{HOST}:{port}" for port in self._routes],
            },
        }
