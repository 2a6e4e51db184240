"""Examines an installation of FairGPU for `fairgpu doctor`: its parts, versions, leader, certificates and statuses.

Everything is read from the API server; Redis is not asked. A pod of the timekeeper is ready only if Redis answers the
pod and the pod knows the cluster's objects, so its readiness shows whether Redis works.
"""

from __future__ import annotations

import re
from collections.abc import Collection as Group
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fairgpu import names
from fairgpu.certificates import CertificateError, expires_at, issued_at, published_bundle
from fairgpu.client.tables import table
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, list_collection
from fairgpu.json_values import mapping, mappings
from fairgpu.permissions import Permission, unknown_permissions
from fairgpu.settings import environment_name
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import instant_or_none
from timekeeper.sources.base import name_of
from timekeeper.sources.kubernetes import BUDGETS
from timekeeper.sources.looking import BUDGETS_MAP, LINES

NODES_NAMESPACE: Final = "fairgpu-nodes"
AUTHORITY: Final = "fairgpu-timekeeper-ca"
NAMESPACES: Final = "/api/v1/namespaces"
SCHEDULER: Final = names.SCHEDULER_NAME
WEBHOOKS: Final = "zz-fairgpu"
BUDGETS_FROM: Final = environment_name(("timekeeper", "budgets_from"))
NEAR_END: Final = timedelta(days=14)
"""A CA that ends within this time should have been renewed; if a sixth of its life is shorter, that counts."""
LEASES_TO_WAIT: Final = 2
"""A Lease that was not renewed for this many of its durations has no leader: a follower takes over within one."""
BEHIND: Final = 3
"""The most names of budgets or namespaces that a sentence lists."""
OWN_CONTAINERS: Final = frozenset({"certificates", "extender", "jobs", "nodeagent", "rest", "webhook"})
"""The names of FairGPU's own containers in its manifests, by which their images are found to read the version.

The names of images do not identify them, since a mirror may rename an image.
"""
_VERSION: Final = re.compile(r"v?[0-9]+\.[0-9]+.*")
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)
_SYSTEM: Final = f"/apis/apps/v1/namespaces/{names.SYSTEM_NAMESPACE}"
_PARTS: Final = (
    f"{_SYSTEM}/deployments",
    f"{_SYSTEM}/statefulsets",
    f"/apis/apps/v1/namespaces/{NODES_NAMESPACE}/daemonsets",
)
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/leases"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A workload of an installation of FairGPU, such as a Deployment.

    Attributes:
        name: the workload's name.
        ready: the number of the workload's pods that are ready.
        wanted: the number of pods that the workload should have.
        versions: the versions of FairGPU in the workload's images, as far as the images' tags state a version.
    """

    name: str
    ready: int
    wanted: int
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects of an installation of FairGPU, as the API server has them.

    Attributes:
        parts: its workloads.
        renewed: the instant at which the leader last renewed its Lease, in nanoseconds since 1970; None if there is no
            such Lease, or if it could not be read.
        bundles: keyed by service, such as `the webhook`, the CAs (PEM) that the service's clients trust. The value is
            empty if the object for the CAs has none yet. A service whose object is unread has no key, nor has the
            webhook if its object is absent.
        behind: the names of the budgets without a status, or whose status describes an older spec.
        lines: the names of the budgets without effect: they are only in the mode look's ConfigMap, but this
            installation takes its budgets from GPUBudgets. Empty if it takes them from the ConfigMap.
        modes: keyed by namespace, the value of the label that chooses its mode; empty without the webhook, which reads
            it.
        unknown: keyed by namespace, the words in its annotation for permissions that name no permission. Such a word
            grants nothing.
        unreadable: the collections and objects that could not be read.
    """

    parts: tuple[InstalledPart, ...] = ()
    renewed: int | None = None
    bundles: Mapping[str, bytes] = field(default_factory=dict)
    behind: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Installation:
    """The findings of `fairgpu doctor` on an installation of FairGPU.

    Attributes:
        parts: the workloads of the installation.
        matters: the faults of the installation, as sentences without their full stop.
        unreadable: the collections and objects that could not be read.
    """

    parts: tuple[InstalledPart, ...]
    matters: tuple[str, ...]
    unreadable: tuple[str, ...]


def read_installation(api: KubernetesAPI, lease: str) -> Observed | None:
    """Returns the objects of an installation of FairGPU; None if FairGPU is not installed.

    Objects that the API server refuses (403) or cannot serve (503) are named in `Observed.unreadable`; objects that it
    does not have (404) count as absent. If no workload of FairGPU is found and some workloads cannot be read, the
    result has only `unreadable`.

    Args:
        lease: the name of the leader's Lease.

    Raises:
        ApiError: a read fails with any other status, or the API server does not answer.
    """
    unreadable: list[str] = []
    workloads = [item for path in _PARTS for item in _list(api, path, unreadable)]
    parts = tuple(_part(item) for item in workloads if name_of(item).startswith("fairgpu-"))
    if not parts:
        return Observed(unreadable=tuple(unreadable)) if unreadable else None
    leader = _get(api, f"{_LEASES}/{lease}", unreadable)
    bundles = {}
    authority = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps/{AUTHORITY}"
    published = _get(api, authority, unreadable)
    if authority not in unreadable:
        bundles["the timekeeper"] = str(mapping((published or {}).get("data")).get("ca.crt", "")).encode()
    if (found := _get(api, f"{_WEBHOOKS}/{WEBHOOKS}", unreadable)) is not None:
        trusted = [mapping(hook.get("clientConfig")).get("caBundle") for hook in mappings(found.get("webhooks"))]
        bundles["the webhook"] = min((published_bundle(bundle) for bundle in trusted), key=len, default=b"")
    budgets = _list(api, BUDGETS, unreadable)
    by_objects = found is not None or any(_takes_gpubudgets(item) for item in workloads)
    config_map = _get(api, LINES, unreadable) if by_objects and BUDGETS not in unreadable else None
    lines = mapping((config_map or {}).get("data")).keys() - {name_of(item) for item in budgets}
    namespaces = [] if found is None else _list(api, NAMESPACES, unreadable)
    metadata = {name_of(item): mapping(item.get("metadata")) for item in namespaces}
    labels = {name: mapping(own.get("labels")) for name, own in sorted(metadata.items())}
    unknown = {
        name: unknown_permissions(mapping(own.get("annotations")).get(names.NAMESPACE_ALLOW))
        for name, own in sorted(metadata.items())
    }
    return Observed(
        parts,
        instant_or_none(mapping((leader or {}).get("spec")).get("renewTime")),
        bundles,
        tuple(sorted(name_of(item) for item in budgets if _is_behind(item))),
        tuple(sorted(lines)),
        {name: str(own[names.NAMESPACE_MODE]) for name, own in labels.items() if names.NAMESPACE_MODE in own},
        {name: words for name, words in unknown.items() if words},
        tuple(unreadable),
    )


def judge(observed: Observed, version: str, lease_seconds: int, now: int) -> Installation:
    """Judges the objects of an installation of FairGPU; returns its parts and its faults.

    Args:
        version: the version of this command; parts of another version are a fault.
        lease_seconds: the duration of the leader's Lease; a Lease that was not renewed for LEASES_TO_WAIT times this
            duration is a fault.
        now: nanoseconds since 1970.
    """
    return Installation(
        observed.parts,
        (
            *_of_parts(observed.parts, version),
            *(_of_leader(observed, lease_seconds, now) if observed.parts else ()),
            *_of_certificates(observed.bundles, datetime.fromtimestamp(now / SECOND, UTC)),
            *_of_statuses(observed.behind),
            *_of_lines(observed.lines),
            *_of_modes(observed.modes, {part.name for part in observed.parts}),
            *_of_permissions(observed.unknown),
        ),
        observed.unreadable,
    )


def as_lines(installation: Installation) -> list[str]:
    """Returns the findings on an installation as lines of text for `fairgpu doctor`."""
    if not installation.parts:
        return [f"It is not known whether FairGPU is installed. Not read: {', '.join(installation.unreadable)}."]
    rows = [[part.name, str(part.ready), str(part.wanted), ", ".join(part.versions)] for part in installation.parts]
    lines = ["Installed:", "", table(["part", "ready", "wanted", "version"], rows)]
    for matter in installation.matters:
        lines += ["", f"{matter}."]
    if not installation.matters and not installation.unreadable:
        lines += ["", "All parts are ready, a replica leads, and no certificate ends soon."]
    if installation.unreadable:
        lines += ["", f"Not read: {', '.join(installation.unreadable)}."]
    return lines


def as_document(installation: Installation) -> dict[str, Any]:
    """Returns the findings on an installation as a JSON object for `fairgpu doctor -o json`."""
    return {
        "parts": [
            {"name": part.name, "ready": part.ready, "wanted": part.wanted, "versions": part.versions}
            for part in installation.parts
        ],
        "matters": installation.matters,
        "notRead": installation.unreadable,
    }


def _of_parts(parts: Sequence[InstalledPart], version: str) -> Iterable[str]:
    for part in parts:
        if part.ready < part.wanted:
            yield f"{part.name}: {part.ready} of {part.wanted} pods are ready. {_CAUSES.get(part.name, _USUAL)}"
        elif not part.wanted and part.name != _NODE_AGENT:
            cause = f"{_CAUSES[part.name]}. " if part.name in _CAUSES else ""
            yield f"{part.name} is scaled to 0 pods. {cause}Apply your overlay again"
    found = sorted({version for part in parts for version in part.versions})
    if len(found) > 1:
        yield f"Parts are of different versions: {', '.join(found)}. Finish the upgrade"
    elif found and found[0].removeprefix("v") != version:
        yield f"Installed is {found[0]}, and this command is {version}. It may name things that are not there"


_NODE_AGENT: Final = "fairgpu-nodeagent"
"""The one part that may want no pod: a cluster without GPU nodes has no agent."""
_USUAL: Final = "kubectl -n fairgpu-system describe pods names the cause"
_CAUSES: Final = {
    "fairgpu-redis": "Without Redis nothing is settled, and states of budgets grow old",
    "fairgpu-timekeeper": "Its pods are ready once Redis answers and the cluster is read",
    "fairgpu-webhook": "Without it the API server refuses GPU pods",
    _NODE_AGENT: "These nodes start no GPU container of FairGPU's",
}


def _of_leader(observed: Observed, lease_seconds: int, now: int) -> Iterable[str]:
    if any(_LEASES in name for name in observed.unreadable):
        return
    if observed.renewed is None:
        yield "No replica has led yet: the leader's Lease is not there, so nothing is metered and no state is published"
    elif (late := (now - observed.renewed) // SECOND) > LEASES_TO_WAIT * lease_seconds:
        ago = f"{late} s ago by this machine's clock"
        yield f"No replica leads: the Lease was renewed {ago}. Nothing is settled, and budget states grow old"


def _of_certificates(bundles: Mapping[str, bytes], now: datetime) -> Iterable[str]:
    for whose, bundle in sorted(bundles.items()):
        try:
            lives = [(expires_at(found), issued_at(found)) for found in _CERTIFICATE.findall(bundle)]
        except CertificateError:
            lives = []
        if not lives:
            yield f"The CA of {whose} is not published yet, or unreadable: no client can verify {whose}"
            continue
        end, issued = max(lives)
        if end <= now:
            yield f"The CA of {whose} ended on {end:%Y-%m-%d}"
        elif end - now < min(NEAR_END, (end - issued) / 6):
            yield f"The CA of {whose} ends on {end:%Y-%m-%d}, and should have been renewed"


def _of_statuses(behind: Sequence[str]) -> Iterable[str]:
    if behind:
        yield f"The status of these budgets is of an older spec: {_some(behind)}"


def _of_lines(lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield (
            f"These budgets are lines of the ConfigMap {BUDGETS_MAP}, which has no effect where budgets are "
            f"GPUBudgets: {_some(lines)}. `fairgpu gpubudgets | kubectl apply -f -` makes them GPUBudgets; or take "
            "them out of the ConfigMap"
        )


def _of_modes(modes: Mapping[str, str], parts: Group[str]) -> Iterable[str]:
    moved = [name for name, mode in modes.items() if mode == "share"]
    if moved and SCHEDULER not in parts:
        yield (
            f"These namespaces have the label {names.NAMESPACE_MODE}=share, and {SCHEDULER} is not installed: "
            f"{_some(moved)}. Their new GPU pods stay Pending without an event until it is (docs/adopting.md)"
        )
    for name, mode in modes.items():
        if mode not in {"share", "account"}:
            yield f"{name}: the label {names.NAMESPACE_MODE} is {mode!r} and counts as none; allowed: share, account"


def _of_permissions(unknown: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    for name, words in unknown.items():
        yield (
            f"{name}: the annotation {names.NAMESPACE_ALLOW} contains {', '.join(map(repr, words))}, which permits "
            f"nothing; allowed: {', '.join(Permission)}"
        )


def _some(budgets: Sequence[str]) -> str:
    more = f" and {len(budgets) - BEHIND} more" if len(budgets) > BEHIND else ""
    return ", ".join(budgets[:BEHIND]) + more


def _part(item: Json) -> InstalledPart:
    spec, status = mapping(item.get("spec")), mapping(item.get("status"))
    daemons = "desiredNumberScheduled" in status
    wanted = status.get("desiredNumberScheduled") if daemons else spec.get("replicas", 1)
    ready = status.get("numberReady" if daemons else "readyReplicas", 0)
    pod = mapping(mapping(spec.get("template")).get("spec"))
    own = (each for each in mappings(pod.get("containers")) if each.get("name") in OWN_CONTAINERS)
    images = [str(container.get("image", "")) for container in own]
    versions = sorted({version for image in images if (version := _version(image))})
    return InstalledPart(name_of(item), _whole(ready), _whole(wanted), tuple(versions))


def _takes_gpubudgets(workload: Json) -> bool:
    """Returns whether a workload is a timekeeper whose environment says that it takes its budgets from GPUBudgets."""
    pod = mapping(mapping(mapping(workload.get("spec")).get("template")).get("spec"))
    variables = (one for container in mappings(pod.get("containers")) for one in mappings(container.get("env")))
    return any(one.get("name") == BUDGETS_FROM and one.get("value") == "objects" for one in variables)


def _version(image: str) -> str:
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return tag if _VERSION.fullmatch(tag) else ""


def _is_behind(budget: Json) -> bool:
    generation = mapping(budget.get("metadata")).get("generation")
    return mapping(budget.get("status")).get("observedGeneration") != generation


def _list(api: KubernetesAPI, path: str, unreadable: list[str]) -> list[Json]:
    try:
        items, _ = list_collection(api, Collection(path, {}))
    except ApiError as error:
        _note(error, path, unreadable)
        return []
    return items


def _get(api: KubernetesAPI, path: str, unreadable: list[str]) -> Json | None:
    try:
        return api.get(path)
    except ApiError as error:
        _note(error, path, unreadable)
        return None


def _note(error: ApiError, path: str, unreadable: list[str]) -> None:
    """Adds the path of a failed read to `unreadable` if it was refused (403) or the API group is unavailable (503).

    Nothing is added if the API server has no such object (404). Any other error is raised again.
    """
    if error.status not in {403, 404, 503}:
        raise error
    if not error.not_found:
        unreadable.append(path)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
