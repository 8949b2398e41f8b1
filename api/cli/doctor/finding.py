"""Finding: what one check found, in one sentence, and whether something must be done."""

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
    """What is so, and if it is not well what to do."""
    facts: dict[str, Any] = {}
    """The same as numbers."""
