"""What the reference pages list is all that there is: metrics, keys, settings, commands."""

from __future__ import annotations

import re

import click
import pytest

from actors.metrics.frontend_metrics import OUTCOMES, FrontendMetrics
from actors.metrics.replica_metrics import COUNTERS, GAUGES, VERDICTS, queue_metrics
from actors.metrics.worker_metrics import TOTALS, WorkerMetrics
from api.cli.main import contrail
from api.config.schema import Deployment, FrontendSection, LogSection, OperationsSection, WorkerGroup
from core.events.routing import TURNED_AWAY
from core.settings import RoutingSettings
from tests.docs.pages import DOCS

METRICS = (DOCS / "metrics.md").read_text().partition("\n## All metrics\n")[2]
CONFIGURATION = (DOCS / "configuration.md").read_text()
COMMANDS = (DOCS / "cli.md").read_text()


def all_metrics() -> list[str]:
    """All metrics of all processes, as Prometheus names them."""
    registries = (FrontendMetrics().registry, WorkerMetrics("m", "w").registry)
    families = [family for registry in registries for family in registry.collect()]
    families += queue_metrics({})
    names = [f"{it.name}_total" if it.type == "counter" else it.name for it in families]
    worker = [f"contrail_worker_{name}_total" for name in TOTALS]
    return [*names, *GAUGES, *(f"{name}_total" for name in (*COUNTERS, *VERDICTS)), *worker]


@pytest.mark.parametrize("metric", sorted(set(all_metrics())))
def test_every_metric_is_listed(metric: str) -> None:
    """By its name, or in a row of workers by the rest of it."""
    assert f"`{metric}`" in METRICS or f"`{metric.removeprefix('contrail_worker')}`" in METRICS


def test_every_outcome_and_reason_is_listed() -> None:
    """Alerts are written with them."""
    assert [word for word in (*OUTCOMES, *TURNED_AWAY) if f"`{word}`" not in METRICS] == []


def listed(heading: str) -> list[str]:
    """The keys in the first column of a section's table."""
    section = CONFIGURATION.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("heading", "section"),
    [
        ("Top level", Deployment),
        ("Section log", LogSection),
        ("Section frontend", FrontendSection),
        ("Section operations", OperationsSection),
        ("Worker groups", WorkerGroup),
    ],
)
def test_every_key_is_listed(heading: str, section: type[Deployment]) -> None:
    assert sorted(listed(heading)) == sorted(section.__struct_fields__)


def test_every_live_setting_is_listed_with_its_default() -> None:
    section = CONFIGURATION.partition("\n## Live settings\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    defaults = RoutingSettings().to_mapping()
    assert rows == {key: value if isinstance(value, str) else f"{value:g}" for key, value in defaults.items()}


def test_every_command_is_listed() -> None:
    ctx = click.Context(contrail)
    found = []
    for word in contrail.list_commands(ctx):
        command = contrail.get_command(ctx, word)
        inner = command.list_commands(ctx) if isinstance(command, click.Group) else [""]
        found += [f"contrail {word} {each}".rstrip() for each in inner]
    assert [each for each in found if f"`{each}`" not in COMMANDS] == []
