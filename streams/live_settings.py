"""LiveSettings: the settings of decisions: the configured ones, and over them those in the registry.

1. Settings of the registry are published in the log before a decision rests on them: a decision's revision means the
   last SettingsChanged before it in its replica's own chain. It means nothing elsewhere: a registry that lost its data
   counts anew, and the same number may name other settings then.
2. While the registry is away the last settings stay. If it lost them, those that it still has count again, or else the
   configured ones, as they do for every replica that starts then. The lost ones are logged, so that they can be set
   again.
3. A value that is no settings is refused, the last ones stay, and the log gets no event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson

from core.errors import CallerError
from core.events import SettingsChanged
from core.settings import RoutingSettings
from streams.registry import Change, Registry

SETTINGS_KEY = "settings/routing"

_logger = logging.getLogger(__name__)


class LiveSettings:
    """Settings and their revision change together; `on_change` hears of it."""

    def __init__(self, configured: RoutingSettings, on_change: Callable[[], None]) -> None:
        self.current = configured
        self.revision = 0
        """The registry's own; 0 for what was configured."""
        self.refused = ""
        """Why the registry's present value is not used; empty if it is."""
        self._configured = configured
        self._given: dict[str, Any] = {}
        """The settings that the registry reported last."""
        self._on_change = on_change

    def __repr__(self) -> str:
        return f"<LiveSettings of revision {self.revision}, policy {self.current.policy}>"

    async def follow(self, registry: Registry) -> None:
        """The registry's settings count, now and after each change. Unavailable if it is away."""
        await registry.watch(SETTINGS_KEY, self._on_registry)

    def event(self) -> SettingsChanged:
        """The event that precedes the first decision under these settings."""
        return SettingsChanged(revision=self.revision, settings=self.current.to_mapping())

    def _on_registry(self, change: Change) -> None:
        """Those that cannot be read are refused and said, and the last ones stay."""
        if change.key != SETTINGS_KEY:
            return
        try:
            given = _parsed(change.value)
            current = RoutingSettings.parse({**self._configured.to_mapping(), **given})
        except CallerError as error:
            self.refused = str(error)
            _logger.error("settings of revision %d refused, the last ones stay: %s", change.revision, error)  # noqa: TRY400
            return
        if change.revision < self.revision:  # revisions of a key only grow
            _warn_of_loss(self._given)
        self.current, self.revision, self.refused, self._given = current, change.revision, "", given
        self._on_change()


def _parsed(value: bytes | None) -> dict[str, Any]:
    try:
        given = {} if value is None else orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise CallerError(f"settings must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise CallerError(f"settings must be a JSON object, not {given!r}")
    return given


def _warn_of_loss(given: dict[str, Any]) -> None:
    words = " ".join(f"{key} {value}" for key, value in given.items())
    _logger.error("the registry lost settings: set them again with `contrail settings set %s`", words)
