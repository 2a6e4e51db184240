"""The rules, the dashboard and the documents speak of the metrics that the services have, and of no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from nodeagent.containers.records import GivenDevice, Record
from nodeagent.driver_figures import Figure
from nodeagent.gpu_watch import Observation
from nodeagent.measures import Measures as NodeMeasures
from nodeagent.measures import NodeCollector
from nodeagent.turns import Policy
from nodeagent.writer_process import WriterProcess
from scheduler.measures import Measures
from tests.contract.monitoring.queries import OF_THE_TARGET, read_query
from tests.contract.monitoring.scraping import Families, running_services, scrape

pytestmark = pytest.mark.patient

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
         for rule in group["rules"]]  # fmt: skip
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
SUFFIXES = ("_bucket", "_sum", "_count", "_created")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    found: Families = {}
    with running_services(tmp_path_factory.mktemp("services")) as ports:
        for port in ports:
            for name, labels in scrape(port).items():
                found.setdefault(name, set()).update(labels)
    for name, labels in {**of_the_extender(), **of_the_node_agent()}.items():
        found.setdefault(name, set()).update(labels)
    return {name: labels for name, labels in found.items() if name.startswith("fairgpu_")}


def of_the_extender() -> Families:
    """From its registry: the service itself answers only in the pod of a kube-scheduler."""
    registry = CollectorRegistry()
    Measures(registry)
    found: Families = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def of_the_node_agent() -> Families:
    """From its registry: the service itself answers only on a node."""
    registry = CollectorRegistry()
    measures = NodeMeasures()
    measures.part_failures.labels("serve")
    measures.show(registry, 0.0)
    device = GivenDevice("GPU-0", 30, 4096, 0, 7)
    record = Record("team", "train", "uid", "main", frozenset({"slot-0"}), 1, False, Policy.HARD, 1, (device,))
    seen = Observation({("uid", "main", "GPU-0"): Figure(1)}, timed=["GPU-0"])
    writer = WriterProcess(Path("/nowhere"), lambda: None)
    writer.set_gpus({"GPU-0": frozenset()})
    registry.register(NodeCollector(lambda: seen, lambda: [record], tuple, dict, writer))
    found: Families = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    rules = {rule.get("alert") or rule["record"]: rule["expr"] for rule in RULES}
    queries = {f"{panel['title']} {query['refId']}": query["expr"] for panel in panels() for query in panel["targets"]}
    return {**rules, **queries}


def known(families: Families) -> Families:
    """The metrics of the services, and those that the recording rules make of them."""
    found = dict(families)
    for rule in RULES:
        if "record" in rule:
            query = read_query(rule["expr"])
            found[rule["record"]] = set(query.grouping) or set().union(*(found[name] for name in query.metrics))
    return found


def without_suffix(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def test_every_metric_and_label_that_is_asked_for_is_there(families: Families) -> None:
    there = known(families)
    wrong = []
    for place, expression in expressions().items():
        query = read_query(expression)
        assert query.metrics, f"{place} asks for none of our metrics"
        for name, labels in query.metrics.items():
            if name not in there:
                wrong.append(f"{place}: there is no {name}")
            elif not labels <= there[name] | OF_THE_TARGET:
                wrong.append(f"{place}: {name} has no label {labels - there[name]}")
        labels = set().union(*(there.get(name, set()) for name in query.metrics))
        if not query.grouping <= labels | OF_THE_TARGET:
            wrong.append(f"{place}: groups by {query.grouping - labels}")
    assert wrong == []


def test_the_variables_of_the_dashboard_ask_for_what_is_there(families: Families) -> None:
    (query,) = (item["query"]["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in families[metric]


def test_every_metric_is_in_the_documents_with_its_labels(families: Families) -> None:
    documented = re.findall(
        r"^\| `(fairgpu_\w+)(?:\{([\w,]*)\})?` \|", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE
    )
    stated = {name: set(filter(None, labels.split(","))) for name, labels in documented}
    there: Families = {}
    for name, labels in families.items():
        if not name.endswith("_created"):
            there.setdefault(without_suffix(name), set()).update(labels - {"le"})
    assert stated == there


def test_no_metric_has_a_label_of_prometheus_own(families: Families) -> None:
    assert {name for name, labels in families.items() if labels & OF_THE_TARGET} == set()


def test_names_end_in_their_unit_as_prometheus_asks(families: Families) -> None:
    words = {word for name in families for word in without_suffix(name).removesuffix("_total").split("_")}
    assert not words & {"ms", "milliseconds", "minutes", "hours", "percent", "mib", "mb", "kb", "ns", "us"}


def test_every_panel_has_a_place_a_title_a_description_and_a_source() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [query["refId"] for query in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])


def test_the_dashboard_shows_every_metric_that_the_alerts_watch() -> None:
    def of(place: dict[Any, str]) -> set[str]:
        made = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
        names: set[str] = set()
        for expression in place.values():
            for name in read_query(expression).metrics:
                names |= of({name: made[name]}) if name in made else {without_suffix(name)}
        return names

    alerts = of({rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule})
    queries = [query["expr"] for panel in panels() for query in panel["targets"]]
    shown = of(dict(enumerate(queries)))
    assert alerts - shown == set()


def test_the_objects_beside_prometheus_are_installed_as_one_component() -> None:
    component = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())
    named = {*component["resources"], *(file.split("=")[1] for file in component["configMapGenerator"][0]["files"])}
    assert named == {file.name for file in MONITORING.iterdir()} - {"kustomization.yaml"}


def test_every_port_that_shows_metrics_is_scraped() -> None:
    monitors = list(yaml.safe_load_all((MONITORING / "pod-monitors.yaml").read_text()))
    scraped = {
        (monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"], endpoint["port"])
        for monitor in monitors
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    }
    deploy = ROOT / "deploy"
    files = [deploy / "base" / service / "deployment.yaml" for service in ("webhook", "timekeeper", "scheduler")]
    workloads = [
        item
        for file in (*files, deploy / "nodes" / "daemonset.yaml")
        for item in yaml.safe_load_all(file.read_text())
        if item["kind"] in ("Deployment", "DaemonSet")
    ]
    there = {
        (item["metadata"]["name"], port["name"])
        for item in workloads
        for container in item["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
        if port["name"].endswith("metrics")
    }
    assert scraped == there
