"""What an operator decides about who may ask, and what is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from api.config import FrontendSection
from api.debug.access import is_loopback
from api.security.entrance import cautions
from api.security.keyring import Keyring
from core.clock import Clock

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Of one front end. The defaults are open to whoever reaches the port, and tell nothing of the inside."""

    keyring: Keyring | None = None
    """None: no key is asked for."""
    isolate_tenants: bool = False
    """Whether each tenant has a cache of its own."""
    expose_routing: bool = False
    """Whether answers say in headers which worker made them, and how long what took."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may ask; none: no page may."""


def policy_of(section: FrontendSection, host: str, clock: Clock) -> AccessPolicy:
    """What the deployment file says, for a front end that listens there; CallerError if the keys cannot be read.

    Says so if everybody who reaches the port may ask, and on loopback tells where requests went.
    """
    for caution in cautions(section, host):
        _logger.warning("%s", caution)
    return AccessPolicy(
        keyring=None if section.keys is None else Keyring(Path(section.keys).expanduser(), clock),
        isolate_tenants=section.isolate_tenants,
        expose_routing=section.expose_routing or is_loopback(host),
        cors=section.cors,
    )
