"""The entrance to a deployment, looked at before anything of it is started: its keys and its certificate."""

from __future__ import annotations

from pathlib import Path

import msgspec

from api.config import Deployment, FrontendSection
from api.debug.access import is_loopback
from api.security.keys_file import read_keys
from api.security.tls import tls_context

OPEN_TO_ALL = "everybody who reaches {host} may ask: no API keys are given (`contrail keys create`, then --keys FILE)"
IN_CLEAR = "API keys and prompts cross the network in clear: give --tls-cert, or put a TLS proxy in front"


def with_entrance(deployment: Deployment) -> Deployment:
    """The deployment with the paths of its keys and certificate made absolute, for parts that stand elsewhere.

    CallerError if one of the files cannot be used.
    """
    section = deployment.frontend
    keys, tls = _absolute(section.keys), section.tls
    if keys is not None:
        read_keys(Path(keys))
    if tls is not None:
        tls = msgspec.structs.replace(tls, cert=_absolute(tls.cert), key=_absolute(tls.key))
        tls_context(tls.cert, tls.key)
    frontend = msgspec.structs.replace(section, keys=keys, tls=tls)
    return msgspec.structs.replace(deployment, frontend=frontend)


def cautions(section: FrontendSection, host: str) -> list[str]:
    """What an operator should know of front ends that listen there; nothing on loopback."""
    if is_loopback(host):
        return []
    if section.keys is None:
        return [OPEN_TO_ALL.format(host=host)]
    return [] if section.tls is not None else [IN_CLEAR]


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
