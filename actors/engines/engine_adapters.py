"""EngineAdapters: the adapters (LoRA) of one engine, each in a copy of its own files, under an id and a number.

1. The files are copied first, and the digest is that of the copy. The engine reads the copy alone. So the digest
   names the weights that the engine computes with, also if the given files change.
2. The engine knows an adapter by its id, `name@digest`, and by a number that no other one of this engine ever has:
   what the engine keeps under an id, KV included, is never found for other weights. A copy lies where earlier ones of
   its id lay, because vLLM's names of blocks have the path in them: blocks of an adapter that comes back are found.
3. An adapter that is unloaded goes when its last request has ended.
4. A copy that was staged is read by the engine when it is attached, and may be detached and attached again.
5. Copies lie in a temporary folder that is locked while the process lives. What killed processes left goes when the
   next one loads an adapter. An engine that outlives its worker is given a folder that stays the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from actors.engines.locked_folder import lock_folder, open_locked_folder
from actors.kv_blocks.weights_digest import WEIGHTS, content_digest
from core.errors import CallerError, Unavailable
from core.events.kv import ADAPTER_SEPARATOR, adapter_id

ADAPTERS_MAX = 64
"""Adapters of one engine, those included that still have requests."""
NAME_CHARS_MAX = 128
CONFIGURATION = "adapter_config.json"
RANK_MAX = 1 << 16
STAGED_MAX = 1024
"""Copies of one engine, attached or not."""
HOME_PREFIX = "contrail-adapters-"
CLAIM_TRIES = 3
"""A folder that stays the same may be removed between its making and its lock, so often at most."""


class AdapterCopy(NamedTuple):
    """An adapter as its engine reads it."""

    name: str
    digest: str
    rank: int
    number: int
    """From 1."""
    folder: Path

    @property
    def id(self) -> str:
        """See `core.events.kv.Adapter.id`."""
        return adapter_id(self.name, self.digest)


class _Entry:
    def __init__(self, copy: AdapterCopy, source: str) -> None:
        self.copy = copy
        self.source = source
        """The folder that was given."""
        self.attached = False
        self.requests = 0
        self.retired = False
        """New requests are refused."""
        self.unused = asyncio.Event()
        self.unused.set()


class EngineAdapters:
    """See the module's text. All methods are called on the event loop."""

    def __init__(
        self,
        attach: Callable[[AdapterCopy], Awaitable[None]] | None = None,
        detach: Callable[[AdapterCopy], Awaitable[None]] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`attach` makes the engine read a copy, `detach` makes the engine forget it; None for an engine that reads
        none. Copies lie in `folder`, or in a temporary one of their own."""
        self._attach = attach
        self._detach = detach
        self._folder = folder
        self._entries: dict[str, _Entry] = {}
        """By id; at most STAGED_MAX, and ADAPTERS_MAX of them attached."""
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._home: Path | None = None
        self._home_lock = -1
        """A descriptor, while there is a home."""

    def __repr__(self) -> str:
        return f"<EngineAdapters {', '.join(self._entries)}>"

    def served(self) -> list[AdapterCopy]:
        """Adapters that take new requests, in the order in which they were loaded."""
        return [entry.copy for entry in self._entries.values() if entry.attached and not entry.retired]

    def sources(self) -> dict[str, str]:
        """The folders that were given for these, by name."""
        live = [entry for entry in self._entries.values() if entry.attached and not entry.retired]
        return {entry.copy.name: entry.source for entry in live}

    async def load(self, name: str, path: str) -> AdapterCopy:
        """The engine serves the adapter in this folder under its id. One of equal content under this name is not loaded
        again. Copies and reads the files: some seconds for each GB.

        CallerError if the name or the files are none of an adapter, if the engine refuses them, if it has ADAPTERS_MAX,
        or if the folder for copies cannot be had.
        """
        check_adapter_name(name)
        async with self._lock:
            if self._is_full():
                raise CallerError(f"this engine has {ADAPTERS_MAX} adapters, and may have no more: unload one first")
            entry, is_new = await self._copy(name, path)
            entry.retired = False
            try:
                await self._attach_entry(entry)
            except BaseException:  # a cancelled call, too, leaves no copy behind
                if is_new:
                    self._forget(entry)
                raise
            return entry.copy

    async def stage(self, name: str, path: str) -> AdapterCopy:
        """The copy is there, and the engine does not serve it. Else as `load`; CallerError for more than STAGED_MAX."""
        check_adapter_name(name)
        async with self._lock:
            entry, _ = await self._copy(name, path)
            await self._detach_entry(entry)
            return entry.copy

    async def attach(self, adapter: str) -> None:
        """The engine serves the staged adapter of this id. CallerError if it refuses it, Unavailable if it has
        ADAPTERS_MAX now."""
        async with self._lock:
            if self._is_full():
                raise Unavailable(f"this engine has {ADAPTERS_MAX} adapters")
            await self._attach_entry(self._entries[adapter])

    async def detach(self, adapter: str) -> None:
        """The engine serves this adapter no more, and its copy stays. It has no requests."""
        async with self._lock:
            entry = self._entries[adapter]
            assert not entry.requests
            await self._detach_entry(entry)

    def _is_full(self) -> bool:
        return sum(entry.attached for entry in self._entries.values()) >= ADAPTERS_MAX

    async def _copy(self, name: str, path: str) -> tuple[_Entry, bool]:
        """The entry of these files, and True if it is new."""
        if len(self._entries) >= STAGED_MAX:
            raise CallerError(f"this engine has copies of {STAGED_MAX} adapters, and may have no more")
        home = self._home or await self._make_home()
        copy = await asyncio.to_thread(_copied, name, Path(path), home, next(self._numbers))
        there = self._entries.get(copy.id)
        if there is not None:
            await asyncio.to_thread(shutil.rmtree, copy.folder)
            return there, False
        copy = copy._replace(folder=copy.folder.rename(home / _folder_name(copy)))
        entry = self._entries[copy.id] = _Entry(copy, path)
        return entry, True

    async def _attach_entry(self, entry: _Entry) -> None:
        if not entry.attached and self._attach is not None:
            await self._attach(entry.copy)
        entry.attached = True

    async def _detach_entry(self, entry: _Entry) -> None:
        if entry.attached:
            entry.attached = False
            if self._detach is not None:
                await self._detach(entry.copy)

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.copy.id]
        shutil.rmtree(entry.copy.folder)

    async def _make_home(self) -> Path:
        given = self._folder
        home, self._home_lock = await asyncio.to_thread(_open_home, given)
        self._home = home
        return home

    async def unload(self, adapter: str) -> None:
        """The adapter of this id takes no new requests, and is gone once its last request has ended; nothing happens if
        there is none. It stays if it is loaded again meanwhile."""
        entry = self._entries.get(adapter)
        if entry is None:
            return
        entry.retired = True
        while entry.requests:
            await entry.unused.wait()
        async with self._lock:
            if not entry.retired or entry.requests or self._entries.get(adapter) is not entry:
                return
            del self._entries[adapter]
            if entry.attached and self._detach is not None:
                await self._detach(entry.copy)
            await asyncio.to_thread(shutil.rmtree, entry.copy.folder)

    @contextmanager
    def using(self, adapter: str) -> Iterator[AdapterCopy]:
        """The adapter of this id stays while the block runs. Unavailable if it is not served here: it was unloaded
        since the request was sent."""
        entry = self._entries.get(adapter)
        if entry is None or entry.retired or not entry.attached:
            raise Unavailable(f"the adapter {adapter} is not served here any more")
        entry.requests += 1
        entry.unused.clear()
        try:
            yield entry.copy
        finally:
            entry.requests -= 1
            if not entry.requests:
                entry.unused.set()

    async def detach_all(self) -> None:
        """The engine has forgotten all, or could not be asked; requests for them have ended."""
        if self._detach is not None:
            attached = [entry.copy for entry in self._entries.values() if entry.attached]
            await asyncio.gather(*map(self._detach, attached))

    def close(self) -> None:
        """No copy is left; the engine is gone."""
        self._entries.clear()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            os.close(self._home_lock)
            self._home = None


def check_adapter_name(name: str) -> None:
    """CallerError unless an adapter may have this name."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable() or ADAPTER_SEPARATOR in name or "*" in name:
        raise CallerError(
            f"{name[:NAME_CHARS_MAX]!r}: the name of an adapter has 1 to {NAME_CHARS_MAX} printable characters, and "
            f"neither `{ADAPTER_SEPARATOR}` nor `*`"
        )


def adapter_rank(folder: Path) -> int:
    """The rank in the configuration of the adapter in this folder. CallerError if there is none. Blocks."""
    try:
        rank = json.loads((folder / CONFIGURATION).read_text())["r"]
    except OSError as error:
        raise CallerError(f"{folder} is no adapter: its {CONFIGURATION} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CallerError(f"{folder / CONFIGURATION} is no configuration of an adapter with a rank `r`") from error
    if not isinstance(rank, int) or not 0 < rank <= RANK_MAX:
        raise CallerError(f"{folder / CONFIGURATION}: the rank `r` is {rank!r}")
    return rank


def _open_home(given: Path | None) -> tuple[Path, int]:
    """The folder for copies, and the descriptor that locks it."""
    return open_locked_folder(HOME_PREFIX) if given is None else _claim_home(given)


def _claim_home(folder: Path) -> tuple[Path, int]:
    """That folder, empty, and the descriptor that locks it. CallerError if another process has it, or if it cannot be
    had."""
    try:
        for _ in range(CLAIM_TRIES):
            folder.mkdir(exist_ok=True)
            lock = lock_folder(folder)
            try:
                if _empty(folder, lock):
                    return folder, lock
            except BaseException:  # whichever it was: the folder is not had
                os.close(lock)
                raise
            os.close(lock)
    except BlockingIOError as error:
        raise CallerError(f"{folder} is in use: another worker has adapters of the same server") from error
    except OSError as error:
        raise CallerError(f"copies of adapters cannot lie in {folder}: {error.strerror}") from error
    raise CallerError(f"copies of adapters cannot lie in {folder}: others remove it")


def _empty(folder: Path, lock: int) -> bool:
    """True if the folder is the one that is locked, and has nothing in it now. False if it was taken for a killed
    process's before the lock. CallerError if it is another user's."""
    held = os.fstat(lock)
    if held.st_uid != os.getuid():
        raise CallerError(f"copies of adapters cannot lie in {folder}: it is another user's")
    if not folder.exists() or not os.path.samestat(held, folder.stat()):
        return False
    for left in folder.iterdir():
        shutil.rmtree(left)
    return True


def _folder_name(copy: AdapterCopy) -> str:
    """One for each id; a name may hold what no folder's may."""
    return f"{copy.digest}-{hashlib.blake2b(copy.name.encode(), digest_size=8).hexdigest()}"


def _copied(name: str, source: Path, home: Path, number: int) -> AdapterCopy:
    """The copy, read once. CallerError if the folder has no weights or no configuration, or cannot be read."""
    folder = home / str(number)
    try:
        files = [path for path in sorted(source.iterdir()) if path.suffix in WEIGHTS or path.name == CONFIGURATION]
        if not any(path.suffix in WEIGHTS for path in files):
            raise CallerError(f"{source} is no adapter: it has no file of weights")
        folder.mkdir()
        try:
            copies = [Path(shutil.copyfile(path, folder / path.name)) for path in files]
            return AdapterCopy(name, content_digest(copies), adapter_rank(folder), number, folder)
        except BaseException:  # whichever it was: half a copy is none
            shutil.rmtree(folder)
            raise
    except OSError as error:
        raise CallerError(f"the adapter in {source} cannot be read: {error.strerror}") from error
