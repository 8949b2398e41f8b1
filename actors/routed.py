"""Who hears where a request went, while it goes there: whoever answers it may want to say so."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

HEARS_ROUTED: ContextVar[Callable[[str], None] | None] = ContextVar("contrail_hears_routed", default=None)
"""Called with the chosen worker's name, once for each attempt at a request of this context; must not fail."""
