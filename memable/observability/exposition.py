"""The metrics of a worker in Prometheus's formats: the only file that imports prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from memable.observability.metrics import BUCKETS_S, METRICS, Histogram, Metric, Metrics

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_BOUNDS = [str(floatToGoString(bound)) for bound in (*BUCKETS_S, float("inf"))]  # type: ignore[no-untyped-call]


def metrics_page(metrics: Metrics) -> WSGIApplication:
    """What a scrape gets: memable's metrics, and those of prometheus-client's default registry.

    The latter has the process's own, and what the steps of an application count with prometheus-client.
    """
    # not in the default registry: an Engine beside another would register the same names twice
    registry = CollectorRegistry()
    registry.register(_Own(metrics))
    registry.register(_Default())
    return make_wsgi_app(registry)


class _Own(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        # also those that have no sample yet: their names and what they mean
        families = {metric.name: _family(metric) for metric in METRICS}
        for metric, labels, value in self._metrics.samples():
            family = families[metric.name]
            if isinstance(value, Histogram):
                assert isinstance(family, HistogramMetricFamily)
                counts = accumulate(list(value.counts))  # one copy: it goes on counting
                family.add_metric(labels, list(zip(_BOUNDS, map(float, counts), strict=True)), value.total_s)
            else:
                assert not isinstance(family, HistogramMetricFamily)
                family.add_metric(labels, float(value))
        yield from families.values()


class _Default(Collector):
    def collect(self) -> Iterator[object]:  # type: ignore[override]  # whatever is registered there
        return iter(REGISTRY.collect())


def _family(metric: Metric) -> Family:
    kinds: dict[str, Callable[..., Family]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
