"""Registration: a worker's entry in the registry, as far as a replica needs it; RegistrationLease: a process's own key.

While the registry is away, a key is still wanted: it is put, or removed, when the registry is back. Each call of the
registry has a bound of its own (`streams.registry.Registry`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
import orjson

from core.errors import PeerError, Unavailable
from core.kv_transfer import KvAddress
from streams.registry import Change, Registry

_logger = logging.getLogger(__name__)


class Registration(msgspec.Struct, frozen=True):
    """A worker's registration. Another process wrote it: read by `parse` only. There may be more in it."""

    model: str
    address: str
    engine: str
    block_size: int
    context_max: int
    role: str = "decode"
    kv: KvAddress | None = None
    """Address from which its blocks can be pulled; None if they cannot."""
    slots: int = 0
    """Requests that its engine runs at once; 0 if unknown."""
    aliases: tuple[str, ...] = ()
    """Names of its model beside `model`, patterns too (`core.served_names`)."""
    capacity_blocks: int = 0
    """Blocks of its engine's cache; 0 if unknown."""
    embedding_size: int = 0
    """Numbers in an embedding; 0 if the worker makes none, or is of a version that does not say."""
    server: str = ""
    """The URL of the running server that is its engine; empty if it started its engine itself."""
    rank: int | None = None
    """The rank of that server that is its engine; None if the server has one."""
    name: str = ""
    """The worker's name, which it keeps over restarts."""
    adapter_catalog: tuple[str, ...] = ()
    """Names of the adapters that its group places on some of its workers."""
    adapters_placed: tuple[str, ...] = ()
    """Those of them that it serves."""

    @property
    def kind(self) -> tuple[str, int, int]:
        """Workers of one model that are alike in this can be spoken to alike."""
        return self.engine, self.block_size, self.context_max

    @staticmethod
    def parse(value: bytes) -> Registration:
        """The registration in a value of the registry. PeerError if it is none."""
        try:
            registration = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"no registration of a worker: {error}") from error
        if registration.block_size <= 0 or registration.context_max <= 0 or registration.slots < 0:
            raise PeerError(f"no registration of a worker: {registration}")
        return registration


def registration_of(change: Change) -> Registration | None:
    """The registration in the registry now. A value that cannot be read counts as none, and is logged."""
    if change.value is None:
        return None
    try:
        return Registration.parse(change.value)
    except PeerError as error:
        _logger.error("%s of revision %d: %s", change.key, change.revision, error)  # noqa: TRY400  # its text has all
        return None


_decoder: msgspec.json.Decoder[Registration] = msgspec.json.Decoder(Registration)


class RegistrationLease:
    """One key in the registry, there for as long as this process lives or until it is removed."""

    def __init__(self, registry: Registry, key: str) -> None:
        self.key = key
        self._registry = registry

    def __repr__(self) -> str:
        return f"<RegistrationLease {self.key}>"

    async def put(self, value: Mapping[str, object]) -> None:
        """The registry says so, or will when it is back."""
        try:
            await self._registry.register(self.key, orjson.dumps(value))
        except Unavailable as error:
            _logger.warning("the registry is away, %s is put when it is back: %s", self.key, error)

    async def remove(self) -> None:
        """The registry has forgotten us, or will when it is back or the lease has run out."""
        try:
            await self._registry.unregister(self.key)
        except Unavailable as error:
            _logger.warning("the registry is away, %s goes with its lease: %s", self.key, error)


def advertised_address(advertise: str, host: str, port: int) -> str:
    """The address for peers: the listening address, or `advertise` with the port where it has none."""
    if not advertise:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return advertise if ":" in advertise else f"{advertise}:{port}"
