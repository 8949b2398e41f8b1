"""Pseudonyms: the text in a redacted log for each name of the original, the same for the same name everywhere.

Random ids stay, since all that is folded and decided goes by them; so do models, adapters and request ids, which
decisions and their digests rest on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from core.events.routing import EXPIRED, HELD, NO_WORKER, RESERVED, TURNED_AWAY, WAITS_FOR
from core.ids import LOST_SUFFIX
from core.settings import POLICIES

TEXT = "redacted"
"""Stands for every text that may say more than it should."""
FOREIGN_KEPT_MAX = 100_000
"""Of request ids that are not ours so many are told apart; beyond, their number is a lower bound."""
PLAIN_TEXTS = frozenset(
    {
        "asked to end (SIGTERM)",
        "asked to end (SIGINT)",
        "contrail up is gone",
        "its process ended; told by its journal",
        "no lease, no answer",
        "no lease, no word",
        "the engine emptied it",
        "the engine refused the request",
        "events of ours are missing",
        "overloaded",
        "no_workers",
        *WAITS_FOR,
        NO_WORKER,
        HELD,
        RESERVED,
        *TURNED_AWAY,
    }
)
"""Texts of this program that contain no name."""
REQUEST_OUTCOMES = frozenset({"stop", "length", "abort", "error", "worker_lost", "declined", EXPIRED})
OPERATOR = "contrail "
"""Prefix of the commands of this program; such an author of a snapshot is no name to replace."""

_ID = re.compile(rf"[0-9a-f]{{16}}({LOST_SUFFIX})?")
_REQUEST = re.compile(r"req-([0-9a-f]{16}|[0-9]{6,7})(\.[0-9]+)?(\.[0-9a-f]{8})?")
"""Ids as we give them: random ones, and the simulator's numbers; with what is put behind those of one call's
further answers, and one that is under way twice."""


class Pseudonyms:
    """See the module's text; grows with the number of names, not with that of messages."""

    def __init__(self) -> None:
        self.foreign: set[str] = set()
        """Request ids that clients chose: they stay, and may reveal something."""
        self._given: dict[str, dict[str, str]] = {}

    def __repr__(self) -> str:
        return f"<Pseudonyms: {sum(map(len, self._given.values()))} replaced, {len(self.foreign)} foreign request ids>"

    @property
    def replaced(self) -> int:
        """Number of replaced names."""
        return sum(map(len, self._given.values()))

    def of(self, kind: str, name: str) -> str:
        """`worker-1` and so on, by first appearance; empty for an empty one."""
        if not name:
            return ""
        given = self._given.setdefault(kind, {})
        return given.setdefault(name, f"{kind}-{len(given) + 1}")

    def id(self, id: str) -> str:
        """A worker's or replica's random id as it is; what does not look like one is a name."""
        return id if is_id(id) else self.of("unknown", id)

    def author(self, by: str) -> str:
        """Author of a snapshot: a replica's name, or one of our commands."""
        return by if by.startswith(OPERATOR) or is_id(by) else self.of("replica", by)

    @staticmethod
    def text(text: str) -> str:
        """A free text: replaced unless it is one of this program's texts without names."""
        return text if not text or text in PLAIN_TEXTS else TEXT

    def tombstone(self, text: str) -> str:
        """Reason of an end, as a fold keeps it."""
        how, found, why = text.partition(": ")
        return f"{how}: {self.text(why)}" if found and how in {"left", "lost"} else TEXT

    @staticmethod
    def settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings: numbers, and a policy's name."""
        return {
            key: value if isinstance(value, int | float) or value in POLICIES else TEXT for key, value in given.items()
        }

    def note(self, requests: Iterable[str]) -> None:
        """Foreign request ids are counted; ids stay as they are."""
        for request in requests:
            if len(self.foreign) < FOREIGN_KEPT_MAX and not _REQUEST.fullmatch(request):
                self.foreign.add(request)


def is_id(text: str) -> bool:
    """The text looks like a random id of ours, or like the source of an end notice."""
    return _ID.fullmatch(text) is not None
