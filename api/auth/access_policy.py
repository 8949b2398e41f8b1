"""The access policy of a front end: API keys, certificate, CORS, and what answers tell of the inside.

`with_checked_files` checks keys, certificate and token before any process is started.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from api.auth.api_keys import read_keys
from api.auth.keyring import Keyring
from api.config.addresses import is_loopback
from api.config.deployment_ref import link_options, operations_token, operator_token, route_token
from api.config.schema import Deployment, FrontendSection
from api.server.sockets import tls_context
from core.clock import Clock
from core.readiness import Readiness

OPEN_TO_ALL = "everybody who reaches {host} may ask: no API keys are given (`contrail keys create`, then --keys FILE)"
OWN_CACHES = "each tenant has a cache of its own (`frontend.isolate_tenants: false` shares one)"
SHARED_CACHE = (
    "tenants share one cache: `cached_tokens` and times tell each of them the prompts of others "
    "(remove `frontend.isolate_tenants: false`)"
)
IN_CLEAR = "API keys and prompts cross the network in clear: give --tls-cert, or put a TLS proxy in front"


def with_checked_files(deployment: Deployment, clock: Clock) -> Deployment:
    """The deployment with absolute paths of its keys, certificates and token, for parts that stand elsewhere.

    CallerError if one of the files cannot be used.
    """
    section = deployment.frontend
    keys, tls = _absolute(section.keys), section.tls
    if keys is not None:
        read_keys(Path(keys))
    if tls is not None:
        tls = msgspec.structs.replace(tls, cert=_absolute(tls.cert), key=_absolute(tls.key))
        tls_context(tls.cert, tls.key)
    route = section.route
    if route is not None:
        route = msgspec.structs.replace(route, token_file=_absolute(route.token_file))
        route_token(route)
    operator_file = _absolute(section.operator_token_file)
    if operator_file is not None:
        operator_token(operator_file)
    frontend = msgspec.structs.replace(section, keys=keys, tls=tls, route=route, operator_token_file=operator_file)
    link = deployment.link
    if (files := link.tls) is not None:
        paths = {name: _absolute(getattr(files, name)) for name in files.__struct_fields__}
        link = msgspec.structs.replace(link, tls=msgspec.structs.replace(files, **paths))
    token_file = _absolute(deployment.operations.token_file)
    operations = msgspec.structs.replace(deployment.operations, token_file=token_file)
    operations_token(operations)
    checked = msgspec.structs.replace(deployment, frontend=frontend, operations=operations, link=link)
    link_options(checked, clock)
    return checked


def exposure_warnings(section: FrontendSection, host: str) -> list[str]:
    """Warnings for front ends that listen there; none on loopback."""
    if is_loopback(host):
        return []
    if section.keys is None:
        return [OPEN_TO_ALL.format(host=host)]
    return [] if section.tls is not None else [IN_CLEAR]


def isolation_note(section: FrontendSection) -> str | None:
    """A note on the caches of tenants; None where the keys are those of one tenant. CallerError if the keys cannot be
    read."""
    if section.keys is None:
        return None
    keys = read_keys(Path(section.keys).expanduser())
    if len({key.tenant for key in keys}) < 2 and not any(key.gateway for key in keys):
        return None
    return SHARED_CACHE if section.isolate_tenants is False else OWN_CACHES


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """The access rules of one front end. The defaults admit every client, and answers reveal no routing."""

    keyring: Keyring | None = None
    """None: no key is asked for."""
    isolate_tenants: bool | None = None
    """True gives each tenant a cache of its own; None does where keys are asked for."""
    expose_routing: bool = False
    """True if answers name their worker and times in headers."""
    cors: tuple[str, ...] = ()
    """Origins of web pages that may send requests; empty forbids all."""
    hosts: tuple[str, ...] = ()
    """Public names of the API."""
    local: bool = False
    """True on loopback without keys: the machine's users are trusted, so that the page asks for no token."""

    @property
    def isolates(self) -> bool:
        """True if each tenant has a cache of its own."""
        return self.keyring is not None if self.isolate_tenants is None else self.isolate_tenants

    def ready(self, others: Readiness) -> Readiness:
        """The readiness of the front end, where `others` is that of all but its keys."""
        return others if self.keyring is None else self.keyring.ready(others)


def policy_of(section: FrontendSection, host: str, clock: Clock) -> AccessPolicy:
    """The policy in the deployment file, for a front end that listens there; CallerError if the keys cannot be read.

    Logs a warning if every client of the network may send requests; on loopback, answers name their worker.
    """
    for caution in exposure_warnings(section, host):
        _logger.warning("%s", caution)
    if (note := isolation_note(section)) is not None:
        _logger.info("%s", note)
    return AccessPolicy(
        keyring=None if section.keys is None else Keyring(Path(section.keys).expanduser(), clock),
        isolate_tenants=section.isolate_tenants,
        expose_routing=section.expose_routing or is_loopback(host),
        cors=section.cors,
        hosts=section.hosts,
        local=section.keys is None and is_loopback(host),
    )
