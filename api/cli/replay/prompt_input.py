"""The prompt that `contrail replay at` asks about, in tokens: as they are given, or a text in a model's tokenizer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from actors.transport.reconnecting_client import ReconnectingClient
from api.cli.process_query import WORKERS, registered_processes
from api.config.deployment_ref import DeploymentRef
from api.process.planes import open_registry
from api.tokenizer.model_tokenizer import ModelTokenizer, TextTooLong
from api.tokenizer.word_cache import WordTooLong
from core.clock import SystemClock
from core.errors import CallerError, PeerError, Unavailable
from core.ids import WorkerId
from core.prompt import tokens_to_bytes

TOKENS_MAX = 1 << 20
"""A longer text is no prompt."""
CONNECT_S = 5.0
"""Longest wait for a worker that is asked for its tokenizer."""
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


class PromptInput(NamedTuple):
    """The prompt as text or as tokens, one of the two."""

    text: Path | None
    tokens: str | None
    tokenizer: Path | None
    """A tokenizer.json, or the folder with it."""


def prompt_bytes(given: PromptInput, model: str, connection: DeploymentRef | None) -> bytes:
    """The tokens, little-endian uint32 each. CallerError says what is missing or wrong."""
    if given.tokens is not None:
        return _ids(given.tokens)
    assert given.text is not None
    files = _files(given.tokenizer, model, connection)
    try:
        found = ModelTokenizer(model, files).encode(_text(given.text), TOKENS_MAX, add_special_tokens=True)
    except (TextTooLong, WordTooLong) as error:
        raise CallerError(f"{given.text} is no prompt: it has more than {TOKENS_MAX} tokens, or no spaces") from error
    if not found:
        raise CallerError(f"{given.text} holds no text")
    return found


def _ids(text: str) -> bytes:
    try:
        found = tokens_to_bytes([int(part) for part in text.replace(" ", "").split(",")])
    except (ValueError, OverflowError) as error:
        raise CallerError("--tokens are token ids with commas between them, such as 1,15043,29871") from error
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{path} cannot be read as text: {error}") from error


def _files(path: Path | None, model: str, connection: DeploymentRef | None) -> dict[str, bytes]:
    if path is not None:
        folder = path if path.is_dir() else path.parent
        found = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        if path.is_file():
            found["tokenizer.json"] = path.read_bytes()
        if "tokenizer.json" not in found:
            raise CallerError(f"there is no tokenizer.json in {path}")
        return found
    if connection is None:
        raise CallerError(
            "a text needs the model's tokenizer: give --tokens, or --tokenizer PATH (its folder, or tokenizer.json)"
        )
    return asyncio.run(_asked(connection, model))


async def _asked(connection: DeploymentRef, model: str) -> dict[str, bytes]:
    """A worker's tokenizer files; the first that answers gives them."""
    async with open_registry(connection) as registry:
        workers = [part for part in await registered_processes(registry, WORKERS) if part.about.get("model") == model]
    for part in workers:
        changed = asyncio.Event()
        link = _link(connection, part.id, str(part.about.get("address")), changed)
        try:
            async with asyncio.timeout(CONNECT_S):
                await changed.wait()
                return await link.files()
        except (PeerError, TimeoutError):
            continue
        finally:
            await link.close()
    raise Unavailable(
        f"no worker of the model {model!r} gives its tokenizer now: give --tokens, or --tokenizer PATH (its folder)"
    )


def _link(connection: DeploymentRef, worker: str, address: str, changed: asyncio.Event) -> ReconnectingClient:
    clock = SystemClock()
    security = connection.link(clock).security(connection.key, connection.namespace, clock)
    link = ReconnectingClient(
        WorkerId(worker), address, security, lambda: "contrail replay at", lambda _link: changed.set()
    )
    link.start()
    return link
