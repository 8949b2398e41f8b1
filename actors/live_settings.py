"""LiveSettings: what decisions go by: what was configured, and over it what the registry says now."""

from __future__ import annotations

import logging
from collections.abc import Callable

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
        self._configured = configured
        self._on_change = on_change

    def __repr__(self) -> str:
        return f"<LiveSettings of revision {self.revision}, policy {self.current.policy}>"

    async def follow(self, registry: Registry) -> None:
        """The registry's settings count, and whatever it says from now on. Unavailable if it is away."""
        await registry.watch(SETTINGS_KEY, self._on_registry)

    def event(self) -> SettingsChanged:
        """What the log must hear before a decision rests on them."""
        return SettingsChanged(revision=self.revision, settings=self.current.to_mapping())

    def _on_registry(self, change: Change) -> None:
        """Those that cannot be read are refused and said, and the last ones stay."""
        if change.key != SETTINGS_KEY:
            return
        try:
            self.current = self._parsed(change.value)
        except (CallerError, orjson.JSONDecodeError) as error:
            _logger.error("settings of revision %d refused, the last ones stay: %s", change.revision, error)  # noqa: TRY400
            return
        self.revision = change.revision
        self._on_change()

    def _parsed(self, value: bytes | None) -> RoutingSettings:
        given = {} if value is None else orjson.loads(value)
        if not isinstance(given, dict):
            raise CallerError(f"settings must be a JSON object, not {given!r}")
        return RoutingSettings.parse({**self._configured.to_mapping(), **given})
