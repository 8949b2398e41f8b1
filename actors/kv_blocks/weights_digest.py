"""Weights digest: names a model by the content of its files, so that other weights in the same folder are another one.

BLAKE2b, not XXH3: weights come from strangers, and two models of one digest would share blocks. Each GB of a file
takes some 1.3 s, once: digests are kept in a small file, by a file's path, inode, size and both of its times.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from core.errors import CallerError

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGURATION = "config.json"
DIGEST_BYTES = 16
THREADS = 4
"""Files of a model that are read at once."""


def weights_files(folder: Path) -> dict[str, str]:
    """Each file of weights in the folder, and its configuration, with what changes if the file does.

    CallerError if the folder has no weights.
    """
    try:
        paths = [path for path in sorted(folder.rglob("*")) if path.suffix in WEIGHTS or path.name == CONFIGURATION]
        paths = [path for path in paths if path.is_file()]
        found = {str(path.resolve()): _state(path) for path in paths}
    except OSError as error:
        raise CallerError(f"the weights in {folder} cannot be read: {error.strerror}") from error
    if not any(path.suffix in WEIGHTS for path in paths):
        raise CallerError(f"the disk tier needs the model's weights as files, and {folder} has none")
    return found


def weights_digest(folder: Path, kept: Path) -> str:
    """The digest of the content of all `weights_files`; `kept` has those of files that were read before. Blocks.

    CallerError if a file cannot be read.
    """
    files = weights_files(folder)
    before = _load(kept)
    unread = [path for path, state in files.items() if before.get(path, [""])[0] != state]
    with ThreadPoolExecutor(THREADS) as pool:
        fresh = dict(zip(unread, pool.map(_content, unread), strict=True))
    known = {path: [state, fresh.get(path) or before[path][1]] for path, state in files.items()}
    if unread:
        _save(kept, before | known)
    return _joined(content for _, content in known.values())


def content_digest(paths: Iterable[Path]) -> str:
    """The digest of the content of these files, in this order: 32 hex digits. Blocks. CallerError if a file cannot be
    read."""
    return _joined(_content(str(path)) for path in paths)


def _joined(contents: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for content in contents:
        digest.update(bytes.fromhex(content))
    return digest.hexdigest()


def _state(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _content(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
    except OSError as error:
        raise CallerError(f"the weights in {path} cannot be read: {error.strerror}") from error


def _load(kept: Path) -> dict[str, list[str]]:
    """The digests that are kept; none if it is no such file, which costs time alone."""
    try:
        found = json.loads(kept.read_text())
        return {str(path): [str(state), str(bytes.fromhex(content).hex())] for path, (state, content) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save(kept: Path, digests: dict[str, list[str]]) -> None:
    draft = kept.with_name(f".{kept.name}.{os.getpid()}")
    with suppress(OSError):  # it is read again then
        draft.write_text(json.dumps(digests))
        draft.chmod(0o600)
        draft.rename(kept)
