"""Counts in plain numbers become Prometheus metrics, each review once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from webhook.application import publish_measures
from webhook.cache.admission_cache import AdmissionCache
from webhook.metrics import BUCKETS, Measures


def shown(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def reviews(webhook: str, outcome: str) -> str:
    return f'fairgpu_webhook_reviews_total{{outcome="{outcome}",webhook="{webhook}"}}'


def bucket(webhook: str, bound: str) -> str:
    return f'fairgpu_webhook_review_duration_seconds_bucket{{le="{bound}",webhook="{webhook}"}}'


def test_each_review_is_published_once_however_often_all_are_published() -> None:
    registry = CollectorRegistry()
    measures = Measures(registry)
    measures.reviewed("mutate", "changed", 0.0003)
    measures.publish()
    measures.publish()
    measures.reviewed("mutate", "changed", 0.0004)
    measures.reviewed("validate", "refused", 3.0)
    measures.publish()
    figures = shown(registry)
    assert (figures[reviews("mutate", "changed")], figures[reviews("validate", "refused")]) == (2, 1)
    assert figures[reviews("mutate", "refused")] == 0
    assert figures['fairgpu_webhook_review_duration_seconds_sum{webhook="mutate"}'] == pytest.approx(0.0007)
    assert figures['fairgpu_webhook_review_duration_seconds_count{webhook="validate"}'] == 1


@pytest.mark.parametrize("seconds", [0.0, *BUCKETS, 0.00011, 7.0])
def test_a_duration_falls_into_every_bucket_whose_bound_it_does_not_pass(seconds: float) -> None:
    registry = CollectorRegistry()
    measures = Measures(registry)
    measures.reviewed("mutate", "untouched", seconds)
    measures.publish()
    figures = shown(registry)
    assert figures[bucket("mutate", "+Inf")] == 1
    for bound in BUCKETS:
        assert figures[bucket("mutate", str(bound))] == (seconds <= bound)


def test_readiness_is_published_as_it_is_at_each_moment() -> None:
    registry = CollectorRegistry()
    missing = iter([("the timekeeper's CA",), (), ("namespaces",)])
    seen: list[float] = []

    def wait(_seconds: float) -> bool:
        seen.append(shown(registry)["fairgpu_webhook_ready"])
        return len(seen) == 4

    publish_measures(AdmissionCache(), lambda: next(missing), Measures(registry), wait)

    assert seen == [0, 0, 1, 0]
