"""Parts that a person or a service manager starts beside a deployment: no terminal, no pipe, a log file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streams.jetstream.broker_accounts import WORKER
from tests.e2e.deployment import CONTRAIL, Running
from tests.fixtures.eventually import eventually

END_S = 30.0


class Access:
    """What it takes to be let in from elsewhere: addresses and a key as options, credentials in the environment."""

    def __init__(self, running: Running, role: str = WORKER) -> None:
        it = running.connection
        nats, etcd = it.nats_credentials(role), it.deployment.log.etcd_credentials
        assert nats is not None
        assert etcd is not None
        self.options = [f"--nats={it.nats[0]}", f"--etcd={it.etcd}", f"--namespace={it.namespace}"]
        self.options += [f"--key-file={running.data / 'key'}"]
        given: dict[str, str | None] = {"NATS_NKEY": str(nats.nkey_file), "NATS_API_PREFIX": nats.api_prefix}
        given |= {"ETCD_USER": etcd.user, "ETCD_PASSWORD": etcd.password}
        assert etcd.tls is not None
        given |= {"ETCD_CA": etcd.tls.ca, "ETCD_CERT": etcd.tls.cert, "ETCD_KEY": etcd.tls.key}
        self.environment = {f"CONTRAIL_{name}": value for name, value in given.items() if value is not None}


class ByHand:
    """One such part."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def lines(self) -> list[dict[str, str]]:
        """What it has said; every line is a JSON object."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def address(self) -> str:
        """Where it takes requests, once it does."""
        await eventually(lambda: self._told, "the line that says where it listens")
        return self._told[0].partition(" on ")[2].partition(",")[0]

    @property
    def _told(self) -> list[str]:
        return [line["message"] for line in self.lines if ", operations on " in line["message"]]


@asynccontextmanager
async def by_hand(log: Path, *words: str, access: Access | None = None) -> AsyncIterator[ByHand]:
    """A part that runs until the end of the block, and then leaves when it is asked to."""
    environment = {**os.environ, **(access.environment if access else {})}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*CONTRAIL, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
    try:
        yield ByHand(log)
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        assert await asyncio.to_thread(process.wait, END_S) == 0, log.read_text()
