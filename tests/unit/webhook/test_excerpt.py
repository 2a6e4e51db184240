"""The decoder of reviews keeps every field that a check reads, and no other."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import orjson
import pytest

from fairgpu.pod_faults import MAX_POD_BYTES
from tests.support.admission import KNOWLEDGE, admitted, container, gpu_container, pod, review
from webhook.admission.excerpt import Review
from webhook.admission.review import ROUTES, judge, read
from webhook.settings import Webhook

Path = tuple[str, ...]

OWNER = {"kind": "ReplicaSet", "name": "train-5", "controller": True}
GPU_POD = pod(
    gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], volumeMounts=[]),
    container("other", securityContext={"privileged": False}),
    metadata={"ownerReferences": [OWNER]},
    initContainers=[gpu_container("first")],
)
STORED = admitted(GPU_POD)
TEMPLATE = {"metadata": {}, "spec": GPU_POD["spec"]}
ORDER = {"metadata": {"name": "more"}, "spec": {"budget": "research"}}
JOBS = {
    "JobSet": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2, "template": TEMPLATE}}}]},
    "LeaderWorkerSet": {
        "leaderWorkerTemplate": {"size": 2, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE},
    },
    "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}},
    "MPIJob": {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}},
}
CONTROLLER = {"username": "system:serviceaccount:kube-system:replicaset-controller"}
REVIEWS = {
    "a new pod": ("Pod", GPU_POD, {}),
    "a large pod": ("Pod", pod(gpu_container(args=["x" * (MAX_POD_BYTES // 4)])), {}),
    "a controller's pod": ("Pod", GPU_POD, {"userInfo": CONTROLLER}),
    "a pod without a name": ("Pod", GPU_POD | {"metadata": {"generateName": "train-"}}, {"name": ""}),
    "an updated pod": ("Pod", GPU_POD, {"operation": "UPDATE", "oldObject": STORED}),
    "a resized pod": ("Pod", STORED, {"operation": "UPDATE", "subResource": "resize", "oldObject": STORED}),
    "a debugger": ("Pod", STORED, {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": STORED}),
    "a Deployment": ("Deployment", {"metadata": {}, "spec": {"template": TEMPLATE}}, {}),
    "a CronJob": ("CronJob", {"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}}, {}),
    "a PodTemplate": ("PodTemplate", {"metadata": {}, "template": TEMPLATE}, {}),
    **{f"a {kind}": (kind, {"metadata": {}, "spec": spec}, {}) for kind, spec in JOBS.items()},
    "a grant": ("GPUGrant", ORDER, {}),
}
SETTINGS = (Webhook(), Webhook.model_validate({"end_proof": "finalizer", "templates": "refuse"}))
LOGGED_ONLY = {("request", "object", "metadata", "name"), ("request", "object", "metadata", "generateName")}
"""Fields that no check reads, and that the log names a refused object by."""


class Recorded(dict[str, Any]):
    """A JSON object that notes the keys that are read of it."""

    def __init__(self, item: dict[str, Any], path: Path, reads: set[Path]) -> None:
        super().__init__({key: recorded(value, (*path, key), reads) for key, value in item.items()})
        self._path = path
        self._reads = reads

    def get(self, key: str, default: Any = None) -> Any:
        self._reads.add((*self._path, key))
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._reads.add((*self._path, key))
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._reads.add((*self._path, str(key)))
        return super().__contains__(key)


def recorded(value: Any, path: Path, reads: set[Path]) -> Any:
    if isinstance(value, dict):
        return Recorded(value, path, reads)
    return [recorded(item, path, reads) for item in value] if isinstance(value, list) else value


def fields_of(kind: Any, path: Path = ()) -> dict[Path, Any]:
    """The listed fields by their paths; those of an object within are named as well."""
    fields: dict[Path, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=False).items():
        inner = structure(hint)
        fields[*path, name] = inner
        if inner is not None:
            fields |= fields_of(inner, (*path, name))
    return fields


def structure(hint: Any) -> Any:
    """The TypedDict within a type; None for a value that the decoder keeps with all that is in it."""
    if is_typeddict(hint):
        return hint
    if get_origin(hint) in {list, Union, types.UnionType, Annotated}:
        return next((inner for part in get_args(hint) if (inner := structure(part)) is not None), None)
    return None


def normal(path: Path) -> Path:
    """The old object has the fields of the new one."""
    return tuple("object" if part == "oldObject" else part for part in path)


LISTED = {normal(path): inner for path, inner in fields_of(Review).items()}


def reads_of(name: str) -> set[Path]:
    kind, item, fields = REVIEWS[name]
    body = review(item, kind={"kind": kind}, **fields)
    reads: set[Path] = set()
    for settings in SETTINGS:
        for route in ROUTES:
            subject = read(recorded(orjson.loads(body), (), reads), len(body))
            judge(route, subject, KNOWLEDGE, settings, 0.0)
    return {normal(path) for path in reads}


def is_listed(path: Path) -> bool:
    """Whether the decoder keeps a field: it is listed, or stands in a listed value that is kept whole."""
    return path in LISTED or any(path[:end] in LISTED and LISTED[path[:end]] is None for end in range(1, len(path)))


@pytest.mark.parametrize("name", REVIEWS)
def test_every_field_that_a_check_reads_is_decoded(name: str) -> None:
    assert {path for path in reads_of(name) if not is_listed(path)} == set()


def test_every_field_that_is_decoded_is_read_by_some_check() -> None:
    reads = set[Path]().union(*(reads_of(name) for name in REVIEWS))
    assert set(LISTED) - reads == LOGGED_ONLY
