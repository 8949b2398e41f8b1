"""What docs/operating.md lists is all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.metrics.frontend_metrics import OUTCOMES, FrontendMetrics
from actors.metrics.replica_metrics import COUNTERS, GAUGES, VERDICTS, queue_metrics
from actors.metrics.worker_metrics import TOTALS, WorkerMetrics
from core.events.routing import TURNED_AWAY

MANUAL = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
TABLE = MANUAL.partition("\n## Metrics\n")[2].partition("\n## ")[0]


def shown() -> list[str]:
    """All metrics of all processes, as Prometheus names them."""
    registries = (FrontendMetrics().registry, WorkerMetrics("m", "w").registry)
    families = [family for registry in registries for family in registry.collect()]
    families += queue_metrics({})
    names = [f"{it.name}_total" if it.type == "counter" else it.name for it in families]
    worker = [f"contrail_worker_{name}_total" for name in TOTALS]
    return [*names, *GAUGES, *(f"{name}_total" for name in (*COUNTERS, *VERDICTS)), *worker]


@pytest.mark.parametrize("name", sorted(set(shown())))
def test_every_metric_is_listed(name: str) -> None:
    """By its name, or in a row of workers by the rest of it."""
    assert f"`{name}`" in TABLE or f"`{name.removeprefix('contrail_worker')}`" in TABLE


def test_every_outcome_and_reason_is_listed() -> None:
    """What alerts are written with."""
    assert [word for word in (*OUTCOMES, *TURNED_AWAY) if f"`{word}`" not in TABLE] == []
