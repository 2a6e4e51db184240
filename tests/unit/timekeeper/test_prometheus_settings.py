from __future__ import annotations

from pathlib import Path

import pytest

from fairgpu.commands import CommandError
from timekeeper.controller.present_use import answer_rules
from timekeeper.settings import read_settings

NOWHERE = Path("/nonexistent")
OURS = "FAIRGPU_TIMEKEEPER_PROMETHEUS_"
URL = "https://prometheus.monitoring.svc:9090"


def test_no_prometheus_is_asked_unless_one_is_named() -> None:
    assert read_settings({}, None, NOWHERE).prometheus.url is None


def test_the_default_is_for_the_dcgm_exporter_with_the_labels_of_both_ways_to_scrape_it() -> None:
    found = read_settings({f"{OURS}URL": URL}, None, NOWHERE).prometheus
    assert "DCGM_FI_DEV_GPU_UTIL" in found.query
    rules = answer_rules(found)
    assert rules.labels == (("exported_namespace", "exported_pod"), ("namespace", "pod"))
    assert (rules.full, found.every_seconds) == (100.0, 60)
    assert all(label in found.query for pair in (*rules.labels, *rules.claims) for label in pair)


def test_a_ratio_is_full_at_1() -> None:
    found = read_settings({f"{OURS}URL": URL, f"{OURS}SCALE": "ratio"}, None, NOWHERE).prometheus
    assert answer_rules(found).full == 1.0


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9090", "https://thanos.example.com/prometheus/", "http://[fd00::1]:9090", "https://p"]
)
def test_an_address_may_have_a_port_and_a_path(url: str) -> None:
    assert read_settings({f"{OURS}URL": url}, None, NOWHERE).prometheus.url == url


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"URL": "prometheus:9090"}, "write http:// or https://, a host"),
        ({"URL": "ftp://prometheus"}, "write http:// or https://, a host"),
        ({"URL": "https://"}, "write http:// or https://, a host"),
        ({"URL": "https://p:99999"}, "write http:// or https://, a host"),
        ({"URL": "https://[p"}, "write http:// or https://, a host"),
        ({"URL": "https://p/a b"}, "write http:// or https://, a host"),
        ({"URL": "https://me:word@p"}, "write a token into `token_file`"),
        ({"URL": "https://p?query=up"}, "write the query into `query`"),
        ({"URL": "http://p", "TOKEN_FILE": "/t"}, "token_file is named and url begins with http://"),
        ({"URL": "http://p", "CA_FILE": "/t"}, "ca_file is named and url begins with http://"),
        ({"QUERY": "up"}, "url is missing, and query is of no use without it"),
        ({"URL": URL, "QUERY": ""}, "timekeeper.prometheus.query"),
        ({"URL": URL, "SCALE": "permille"}, "timekeeper.prometheus.scale"),
        ({"URL": URL, "POD_LABELS": "[pod]"}, "timekeeper.prometheus.pod_labels"),
        ({"URL": URL, "POD_LABELS": "[]"}, "timekeeper.prometheus.pod_labels"),
        ({"URL": URL, "CLAIM_LABELS": "[a/b/c]"}, "timekeeper.prometheus.claim_labels"),
        ({"URL": URL, "EVERY_SECONDS": "0"}, "timekeeper.prometheus.every_seconds"),
        ({"URL": URL, "TIMEOUT_SECONDS": "0"}, "timekeeper.prometheus.timeout_seconds"),
        ({"URL": URL, "MAX_ANSWER_MIB": "0"}, "timekeeper.prometheus.max_answer_mib"),
    ],
)
def test_a_question_that_cannot_be_asked_stops_the_start_and_says_what_to_write(
    environ: dict[str, str], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        read_settings({f"{OURS}{name}": value for name, value in environ.items()}, None, NOWHERE)
