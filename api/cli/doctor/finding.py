"""Finding: the result of one check, in one sentence, with its status."""

from __future__ import annotations

from typing import Any

import msgspec

NATS_CLI = "docs/deploy.md says where `nats` comes from"


class Finding(msgspec.Struct, frozen=True):
    """One line of `contrail doctor`."""

    name: str
    """Stable, snake_case."""
    status: str
    """`ok`, `warning` (works, but look at it) or `problem` (does not work, or will not for long)."""
    text: str
    """The fact, and a remedy if there is a problem."""
    facts: dict[str, Any] = {}
    """The same as values."""
