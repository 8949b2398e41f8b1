"""KeptModels: the facts of models in the registry, for front ends that start while no worker of a model is there.

1. A front end that has learned a model from a worker keeps its registration and its tokenizer files here. One that
   starts later serves the model by these, until it learns the model from a worker.
2. The registry has them for good, however long the fleet stays at zero. The log drops its oldest messages.
3. A model has one set of keys, which the next one replaces: the files in pieces, then a card with their checksum under
   the deployment's key. A card without its pieces counts as none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import zlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from actors.membership.registration import Registration
from core.codec import DIGEST_BYTES, known_keys, newest_key
from core.errors import Corrupt, PeerError
from streams.registry import Registry

KEY = "models/{model}/{part}"
CARD = "card"
PIECE_BYTES = 512 * 1024
"""A registry takes values of 1.5 MiB at most."""
PIECES_MAX = 64
"""Of one model: 32 MiB, compressed. The tokenizer of a large vocabulary takes some 7 MiB."""
FILES_BYTES_MAX = 64 * 1024 * 1024
"""Of one model, when they are read."""
RETRY_S = 5.0
"""Pause after the registry was away."""

_logger = logging.getLogger(__name__)


class KeptModel(NamedTuple):
    """One model as a worker had it."""

    registration: Registration
    """Without the worker's addresses and name."""
    files: dict[str, bytes]


class _Card(msgspec.Struct, frozen=True):
    """Another process wrote it."""

    model: str
    registration: msgspec.Raw
    """As the writer's program has it, which may be a newer one."""
    pieces: int
    checksum: str
    """Of the registration and the pieces."""


class KeptModels:
    """Those of one namespace, of the models that may have no worker."""

    def __init__(self, registry: Registry, chain_key: bytes, models: Collection[str]) -> None:
        self._registry = registry
        self._chain_key = chain_key
        self._models = models

    def __repr__(self) -> str:
        return f"<KeptModels of {', '.join(sorted(self._models))}>"

    async def load(self) -> list[KeptModel]:
        """The models that are kept whole; others are logged. Unavailable if the registry is away."""
        found: list[KeptModel] = []
        for model in sorted(self._models):
            try:
                kept = await self._read(model)
            except Corrupt as error:
                _logger.warning("model %s is kept in vain: %s", model, error)
                continue
            if kept is not None:
                found.append(kept)
        return found

    async def keep(self, registration: Registration, files: dict[str, bytes]) -> None:
        """The registry has the model, unless it is none of ours or is too large. Tried each RETRY_S while the registry
        is away."""
        if registration.model not in self._models:
            return
        shared = msgspec.structs.replace(registration, address="", kv=None, server="", rank=None, name="")
        content = await asyncio.to_thread(lambda: zlib.compress(msgspec.msgpack.encode(files)))
        pieces = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
        if len(pieces) > PIECES_MAX:
            _logger.error("model %s is not kept for a fleet at zero: %d bytes", shared.model, len(content))
            return
        encoded = msgspec.json.encode(shared)
        checksum = _checksum(newest_key(self._chain_key), encoded, content)
        card = _Card(shared.model, msgspec.Raw(encoded), len(pieces), checksum)
        while True:
            try:
                await self._write(card, pieces)
            except PeerError as error:
                _logger.warning("model %s cannot be kept now, trying again: %s", shared.model, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _write(self, card: _Card, pieces: list[bytes]) -> None:
        value, model = msgspec.json.encode(card), card.model
        if await self._value(model, CARD) == value:
            return
        for number, piece in enumerate(pieces):
            await self._registry.put(_key(model, f"{number:03}"), piece)
        await self._registry.put(_key(model, CARD), value)
        _logger.info("model %s is kept in %d pieces", model, len(pieces))

    async def _read(self, model: str) -> KeptModel | None:
        """None if the model was never kept; Corrupt if it is not whole."""
        value = await self._value(model, CARD)
        if value is None:
            return None
        try:
            card = _cards.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"its card cannot be read: {error}") from error
        if card.model != model or not 0 < card.pieces <= PIECES_MAX:
            raise Corrupt("its card is no card of this model")
        registration = bytes(card.registration)
        pieces = [await self._value(model, f"{number:03}") for number in range(card.pieces)]
        content = b"".join(piece or b"" for piece in pieces)
        checksums = {_checksum(key, registration, content) for key in known_keys(self._chain_key)}
        if card.checksum not in checksums:
            raise Corrupt("its pieces are not those that were kept")
        return await asyncio.to_thread(_unpacked, registration, content)

    async def _value(self, model: str, part: str) -> bytes | None:
        key = _key(model, part)
        return next((each.value for each in await self._registry.get(key) if each.key == key), None)


def _key(model: str, part: str) -> str:
    """Model names may be long, and have characters that no key has."""
    return KEY.format(model=hashlib.blake2b(model.encode(), digest_size=DIGEST_BYTES).hexdigest(), part=part)


def _checksum(key: bytes, registration: bytes, content: bytes) -> str:
    found = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
    found.update(registration)
    found.update(content)
    return found.hexdigest()


def _unpacked(registration: bytes, content: bytes) -> KeptModel:
    try:
        packed = zlib.decompressobj().decompress(content, FILES_BYTES_MAX)
        return KeptModel(Registration.parse(registration), _files.decode(packed))
    except (PeerError, zlib.error, msgspec.DecodeError) as error:
        raise Corrupt(f"its files cannot be read: {error}") from error


_cards: msgspec.json.Decoder[_Card] = msgspec.json.Decoder(_Card)
_files: msgspec.msgpack.Decoder[dict[str, bytes]] = msgspec.msgpack.Decoder(dict[str, bytes])
