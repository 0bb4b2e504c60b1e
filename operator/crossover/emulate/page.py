"""A metrics page in the text format, written by prometheus-client as the real servers' pages are."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

Labels = Mapping[str, str]


class Histogram:
    """Samples by bucket. ``bounds`` are upper bounds without +Inf."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """(le, samples up to it), +Inf last."""
        names = [str(floatToGoString(bound)) for bound in (*self.bounds, math.inf)]  # type: ignore[no-untyped-call]
        return list(zip(names, accumulate(self._counts), strict=True))


class Page:
    """Families in the order they are added. ``created``: unix time of the process; None where the page is merged from
    several processes, which leaves out the ``_created`` series."""

    def __init__(self, created: float | None = None) -> None:
        self._created, self._families = created, dict[str, Metric]()

    def _family(self, name: str, kind: str) -> Metric:
        return self._families.setdefault(name, Metric(name, "", kind))

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        self._family(name, "gauge").add_sample(name, dict(labels), float(value))

    def counter(self, name: str, labels: Labels, value: float) -> None:
        """``name`` without _total."""
        family = self._family(name, "counter")
        family.add_sample(name + "_total", dict(labels), float(value))
        self._add_created(family, labels)

    def histogram(self, name: str, labels: Labels, histogram: Histogram) -> None:
        family = self._family(name, "histogram")
        for bound, count in histogram.cumulative():
            family.add_sample(name + "_bucket", {**labels, "le": bound}, float(count))
        family.add_sample(name + "_count", dict(labels), float(histogram.count))
        family.add_sample(name + "_sum", dict(labels), float(histogram.sum))
        self._add_created(family, labels)

    def summary(self, name: str, labels: Labels, count: float, total: float) -> None:
        family = self._family(name, "summary")
        family.add_sample(name + "_count", dict(labels), float(count))
        family.add_sample(name + "_sum", dict(labels), float(total))
        self._add_created(family, labels)

    def include(self, families: Iterable[Metric]) -> None:
        """Families of a client registry: the process itself."""
        for family in families:
            self._families[family.name] = family

    def _add_created(self, family: Metric, labels: Labels) -> None:
        if self._created is not None:
            family.add_sample(family.name + "_created", dict(labels), self._created)

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()

    def render(self) -> bytes:
        return generate_latest(self)
