"""Counter: counts by labels at a tenth of the library's price, which every request would pay four times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Count:
    """One set of labels' own; the event loop's alone, scrapes included."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """So many more."""
        self.value += amount


class Counter(Collector):
    """A family, registered where it is made."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def __repr__(self) -> str:
        return f"<Counter {self._name}, {len(self._counts)} counts>"

    def labels(self, *values: str) -> Count:
        """The count of these labels; made on the first call, and shown from then on."""
        assert len(values) == len(self._labels)
        found = self._counts.get(values)
        if found is None:
            found = self._counts[values] = Count()
        return found

    def collect(self) -> Iterator[CounterMetricFamily]:
        """As the library's own."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        yield family
