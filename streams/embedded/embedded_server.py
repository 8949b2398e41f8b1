"""A server of our own: one process on loopback, for one data folder that only one process may use at a time.

In the folder, beside what the server keeps there: `KIND.log` and `KIND.lock`. No other user may enter the folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import CallerError, Unavailable
from streams.embedded.loopback_ports import HOST, PortTaken, free_port, is_free, reserve

READY_S = 30.0
"""Longest wait for a started server to answer; a large store takes a while to open."""
READY_PAUSE_S = 0.02
STOP_S = 10.0
"""Longest wait for a clean end; then it is killed."""
PORT_ATTEMPTS_MAX = 3
"""Free ports that are tried when another process is quicker."""
FOLDER_MODE = 0o700
"""Of the folder: only its owner enters it, because sockets and files in it ask for no credentials."""
LOG_SHOWN = 400
"""Characters of the log that an error carries."""


class EmbeddedServer(ABC):
    """Started, stopped and started again on the same folder and the same port. Subclasses say how and with what."""

    kind: str
    """Its name in texts and file names."""

    def __init__(self, data: Path, port: int | None) -> None:
        self._data = data.absolute()  # the server runs in this folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._reserved: socket.socket | None = None
        """Keeps the port while the server is away, if the server can listen beside it."""
        self._log_start = 0
        """Offset in the log at which the process that was started last began to write."""

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self.running and self._process else "not running"
        return f"<{type(self).__name__} {self._data} port {self._port} {state}>"

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
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._data / f"{self.kind}.log"

    async def start(self) -> None:
        """It answers, and only to our credentials.

        Raises CallerError if the folder or the port is in use, Unavailable if it does not come up (disk full, …).
        """
        assert not self.running
        keep_port = self._reserved is not None
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._data.chmod(FOLDER_MODE)
            self._prepare()
            await self._start_on_some_port()
        except OSError as error:
            self.kill()
            self._release(keep_port=keep_port)
            raise Unavailable(f"{self.kind} cannot be started in {self._data}: {error}") from error
        except BaseException:  # by any error: no process and no lock may be left
            self.kill()
            self._release(keep_port=keep_port)
            raise

    async def stop(self, *, keep_port: bool = False) -> None:
        """The process has ended, the folder is free; and so is the port, unless the server is to be started again."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a stopped process would not hear the first
            try:
                await asyncio.to_thread(self._process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._release(keep_port=keep_port)

    def kill(self) -> None:
        """The process is dead without having cleaned up; the folder stays ours."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def healthy(self) -> bool:
        """False if only a restart can make it work again. Costs no more than a look at a file; errors none."""
        return True

    # --- what a kind of server says ----------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """The credentials are known."""

    def _reuses_port(self) -> bool:
        """True if the server listens with SO_REUSEPORT, beside a socket that keeps its port."""
        return False

    @abstractmethod
    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        """Command and environment for the port as it is set."""

    @abstractmethod
    async def _is_ready(self) -> bool:
        """True if it answers and lets us in; CallerError if it never will."""

    # -----------------------------------------------------------------------------------------------------------

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
        # asked first, because another server of our kind may listen there and answer in the place of ours
        if self._reserved is None:
            if not is_free(port):
                raise PortTaken(port)
            self._reserved = reserve(port) if self._reuses_port() else None
        self._port = port
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._spawn()
        if await self._wait_until_ready():
            return
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        if "address already in use" in text:
            self._release_port()
            raise PortTaken(port)
        raise Unavailable(f"{self.kind} ended at once, see {self.log}: {text[-LOG_SHOWN:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        command, environment = self._command()
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as out:
            # the server inherits the lock: the folder is in use as long as it runs, even if we are gone
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self._data,
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
                    if not is_free(self._port or 0) and await self._is_ready():
                        return True
                    await asyncio.sleep(READY_PAUSE_S)
        except TimeoutError as error:
            raise Unavailable(f"{self.kind} did not answer within {READY_S:g} s, see {self.log}") from error
        return False

    def _take_lock(self) -> None:
        """The folder is ours, or CallerError."""
        if self._lock is not None:
            return
        lock = os.open(self._data / f"{self.kind}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise CallerError(
                f"{self._data} is in use by another {self.kind} (pid {pid}): stop it, or name another data folder"
            ) from error
        self._lock = lock

    def _release(self, *, keep_port: bool) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if not keep_port:
            self._release_port()

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


def write_private(path: Path, text: str) -> None:
    """The file holds the text, whole or not at all, and is its owner's alone, at no moment less."""
    new = path.with_suffix(path.suffix + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
