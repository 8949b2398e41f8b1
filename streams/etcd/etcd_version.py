"""EtcdVersion: a release of etcd, whether it is sound, and the data that it opens."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

SOUND = {(3, 4): 20, (3, 5): 9}
"""First sound patch of each minor release; all later minor releases are sound, and all earlier ones are not."""
SOUND_TEXT = "3.4.20 or newer of 3.4, 3.5.9 or newer of 3.5, or 3.6 or newer"

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?![.\d])")


class EtcdVersion(NamedTuple):
    """Compared as releases follow each other."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The version that the text begins with (`3.5.9`, `v3.6.0-rc.1`), None if it begins with none."""
        found = _VERSION.match(text)
        return None if found is None else cls(*(int(number) for number in found.groups()))

    @property
    def sound(self) -> bool:
        """True if a crash loses no acknowledged write and leaves all members equal."""
        minor = (self.major, self.minor)
        return self.patch >= SOUND[minor] if minor in SOUND else minor > max(SOUND)

    def opens(self, written: EtcdVersion) -> bool:
        """True if this release opens data of that one: etcd goes up by one minor release, and never down."""
        return self.major == written.major and 0 <= self.minor - written.minor <= 1
