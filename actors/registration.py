"""Registration: what the registry says of a worker, as far as a replica needs it."""

from __future__ import annotations

import logging

import msgspec

from core.errors import PeerError
from core.kv_transfer import KvAddress
from streams.registry import Change

_logger = logging.getLogger(__name__)


class Registration(msgspec.Struct, frozen=True):
    """Another process wrote it: read by `parse` only. There may be more in it."""

    model: str
    address: str
    engine: str
    block_size: int
    context_max: int
    role: str = "decode"
    kv: KvAddress | None = None
    """Where its blocks can be pulled from; None if they cannot."""
    slots: int = 0
    """Requests that its engine runs at once; 0 if it does not say."""
    aliases: tuple[str, ...] = ()
    """Names of its model beside `model`, patterns too (`core.served_names`)."""

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
    """What stands in the registry now; what cannot be read counts as nothing, and is said."""
    if change.value is None:
        return None
    try:
        return Registration.parse(change.value)
    except PeerError as error:
        _logger.error("%s of revision %d: %s", change.key, change.revision, error)  # noqa: TRY400  # its text says it all
        return None


_decoder: msgspec.json.Decoder[Registration] = msgspec.json.Decoder(Registration)
