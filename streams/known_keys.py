"""What a watch has told so far, so that after an outage exactly what differs is told."""

from __future__ import annotations

from streams.registry import Change


class KnownKeys:
    """The keys below one prefix as their watcher knows them."""

    def __init__(self) -> None:
        self._keys: dict[str, Change] = {}

    def __repr__(self) -> str:
        return f"<KnownKeys {len(self._keys)} keys>"

    def apply(self, change: Change) -> list[Change]:
        """The change is known; returns it if there is something to tell (none for a deletion of an unknown key)."""
        if change.value is not None:
            self._keys[change.key] = change
        elif self._keys.pop(change.key, None) is None:
            return []
        return [change]

    def replace(self, keys: list[Change], revision: int) -> list[Change]:
        """Exactly these keys are known; returns what differs, in the order of revisions.

        Keys that are gone went at some revision up to the one given, and are told with that.
        """
        assert all(key.value is not None for key in keys)
        now = {key.key: key for key in keys}
        gone = [Change(key, None, revision) for key in self._keys if key not in now]
        changed = [key for key in keys if self._keys.get(key.key) != key]
        self._keys = now
        return sorted(gone + changed, key=lambda change: (change.revision, change.key))
