"""An etcd of our own: one process on loopback, for one data folder.

In the folder: `etcd/` (its data; etcd takes 128 MB at once for its write-ahead log, which no flag changes), `etcd.log`
(of its last start), `etcd.lock`, `etcd.json` (user and password, readable by the owner alone), `etcd.version` (of the
release that wrote the data), `peer:0`, and `etcd-cert.pem` with `etcd-key.pem` if clients need a certificate.

etcd asks peers for no password: a raft message can switch authentication off. A single member has no peers, but always
listens for them. It listens on the unix socket `peer:0`, which only the owner of the folder reaches.

etcd asks clients for no password in some calls: a client could raise the space alarm, compact, grant leases and keep
any lease alive. With a certificate no call is answered without it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import CallerError, Refused, Unavailable
from streams.embedded.embedded_server import EmbeddedServer, write_private
from streams.embedded.etcd_binary import EtcdBinary, bundled_version, choose_binary, clean_environment
from streams.embedded.self_signed_certificate import ensure_certificate
from streams.etcd.etcd_client import EtcdConnection
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_version import EtcdVersion

USER = "root"
VERSION_FILE = "etcd.version"
PEER_SOCKET = "peer:0"
"""Socket for peers, relative to the folder in which etcd runs, because the path of a socket has 107 bytes at most; etcd
takes no name without a port."""
REUSES_PORT = EtcdVersion(3, 5, 0)
"""First release with an option to listen beside another socket of this user."""
QUOTA_BYTES = 512 << 20
"""etcd refuses writes beyond this; a namespace needs some megabytes."""


class EmbeddedEtcd(EmbeddedServer):
    """See the module's text."""

    kind = "etcd"

    def __init__(self, data: Path, *, port: int | None = None, certified: bool = False) -> None:
        """If `certified`, clients need the folder's certificate beside the password, for every call."""
        super().__init__(data, port)
        self._certificate = (data.absolute() / "etcd-cert.pem", data.absolute() / "etcd-key.pem") if certified else None
        self._password: str | None = None
        self._binary: EtcdBinary | None = None

    @property
    def credentials(self) -> EtcdCredentials:
        """Credentials of clients; known once started."""
        assert self._password is not None
        if self._certificate is None:
            return EtcdCredentials(user=USER, password=self._password)
        cert, key = self._certificate
        return EtcdCredentials(user=USER, password=self._password, ca=cert, cert=cert, key=key)

    def _prepare(self) -> None:
        self._binary = choose_binary(self._data / "etcd", _written_by(self._data))
        self._password = self._password or _load_password(self._data)
        if self._certificate is not None:
            ensure_certificate(*self._certificate)
        self.log.unlink(missing_ok=True)  # it does not turn its log over

    def _reuses_port(self) -> bool:
        assert self._binary is not None
        return self._binary.version >= REUSES_PORT

    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        assert self._binary is not None
        client, peer = f"http{'s' if self._certificate else ''}://{self.endpoint}", f"unix://{PEER_SOCKET}"
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
        if self._certificate is not None:
            cert, key = self._certificate
            settings |= {"cert-file": cert, "key-file": key, "trusted-ca-file": cert, "client-cert-auth": "true"}
        if not self._binary.version.sound:
            # it may commit the index of a write before the write itself; a crash between the two commits loses the
            # write. With this limit the write is committed before it is acknowledged
            settings["backend-batch-limit"] = 1
        if self._reserved is not None:
            settings["socket-reuse-port"] = "true"
        return [self._binary.path, *(f"--{name}={value}" for name, value in settings.items())], clean_environment()

    async def _is_ready(self) -> bool:
        if not await asyncio.to_thread(self._lets_us_in):
            return False
        self._record_version()
        return True

    def _record_version(self) -> None:
        """The folder says which release wrote its data."""
        assert self._binary is not None
        path, text = self._data / VERSION_FILE, f"{self._binary.version}\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_private(path, text)

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


def _written_by(data: Path) -> EtcdVersion | None:
    """The release that wrote the folder's data; None without data. Earlier releases of ours started the bundled etcd,
    and recorded none."""
    if not (data / "etcd").exists():
        return None
    path = data / VERSION_FILE
    recorded = EtcdVersion.parse(path.read_text(encoding="utf-8")) if path.exists() else None
    return recorded or bundled_version()


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
