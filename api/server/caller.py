"""The caller of a request, as its API key names it, and the tenant that the request is for.

The caller stands in the request's context and not in arguments, so that no route can forget to pass it on. It is set
for each request, because the next request of a connection may begin in the context of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

TENANT_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def header_tenant(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The tenant that a request names, if it may be one; else empty. For a request that failed."""
    named = dict(headers).get(b"x-contrail-tenant", b"")
    return named.decode() if TENANT_NAME.fullmatch(named) else ""


NO_PRIORITY = (0, 0)
"""The allowance of a key without one: its requests have priority 0."""


class Caller(NamedTuple):
    """The API key of a request: its name and its rights."""

    key: str
    """The key's name."""
    tenant: str
    models: frozenset[str] = frozenset()
    """If any: no other model is there."""
    gateway: bool = False
    """True if the request's header may name another tenant."""
    priority: tuple[int, int] = NO_PRIORITY
    """The lowest and the highest priority that its requests may have."""

    def may_use(self, model: str) -> bool:
        """True if the caller may use this model."""
        return not self.models or model in self.models


CALLER: ContextVar[Caller | None] = ContextVar("contrail_caller", default=None)
"""None where no keys are asked for."""


def effective_tenant(claimed: str | None) -> str | None:
    """The tenant of the present request: its key's tenant, or the one that its header names where it may name one."""
    caller = CALLER.get()
    if caller is None:
        return claimed
    return claimed or caller.tenant if caller.gateway else caller.tenant
