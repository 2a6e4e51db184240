"""A Kubernetes control plane for one test session: etcd, API server, controller manager and scheduler on loopback.

It knows only what it started: KUBECONFIG and HOME of the user who runs the tests are not read.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane import components
from tests.cluster.control_plane.certificates import Authority, service_account_keys
from tests.cluster.control_plane.identities import Identity, write_kubeconfig
from tests.cluster.control_plane.processes import Restartable, running
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until

_CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
_STOP_LIMIT_S = 0.5
"""The API server waits up to a minute for its watchers to leave. All that it knows is in etcd: it may be killed."""


class ControlPlane:
    """The requests that tests make of a running control plane. `admin` may do everything (group system:masters)."""

    def __init__(self, folder: Path, binaries: Path, addresses: components.Addresses, authority: Authority) -> None:
        self.folder = folder
        self.binaries = binaries
        self.kubectl_binary = binaries / "kubectl"
        self.server = addresses.server
        self.certificate_authority = authority.certificate
        self.addresses = addresses
        self.authority = authority
        self.commands: dict[str, list[str]] = {}
        self.servers: dict[str, Restartable] = {}
        self._numbers = itertools.count()
        self.admin = self.user("admin", ["system:masters"])

    def user(self, name: str, groups: Sequence[str] = ()) -> Identity:
        """Anybody, by client certificate. RBAC decides what they may."""
        path = self._file(name)
        write_kubeconfig(path, self.server, self.certificate_authority, self.authority.client(name, groups))
        return Identity(name, path, self.kubectl_binary)

    def node(self, name: str) -> Identity:
        """The kubelet of a node, to the node authorizer and NodeRestriction."""
        return self.user(f"system:node:{name}", ["system:nodes"])

    def service_account(self, namespace: str, name: str) -> Identity:
        """A service account that exists, by a token from the TokenRequest API."""
        path = self._file(f"{namespace}-{name}")
        token = self.token(namespace, name)
        write_kubeconfig(path, self.server, self.certificate_authority, token)
        return Identity(f"system:serviceaccount:{namespace}:{name}", path, self.kubectl_binary)

    def token(self, namespace: str, account: str, *, audience: str = "", pod: Any = None, seconds: int = 7200) -> str:
        """A token of a service account: for the API server or `audience`, bound to a pod object if one is given."""
        spec: dict[str, Any] = {"expirationSeconds": seconds, "audiences": [audience] if audience else None}
        if pod is not None:
            reference = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **reference}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.admin.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
        token: str = answer["status"]["token"]
        return token

    def namespace_admin(self, namespace: str) -> Identity:
        """Somebody who may do everything inside one namespace (RoleBinding to cluster-admin), and nothing outside."""
        name = f"admin-of-{namespace}"
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "namespace-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        }
        self.admin.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
        admin = self.user(name)
        wait_until(lambda: admin.may("create", "pods", namespace=namespace), f"the API server knows {name}")
        return admin

    def create_namespace(self, prefix: str = "team-", **metadata: Any) -> str:
        """Create a namespace with a name of its own; returns once pods can be created in it."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": prefix, **metadata}}
        name: str = self.admin.api.create("/api/v1/namespaces", body)["metadata"]["name"]
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.exists(account), f"the default account of {name}")
        return name

    def remove_pods(self, namespace: str) -> None:
        """Take all pods from a namespace at once, those too that are bound to a node without a kubelet.

        It is how a test ends what it created. The empty namespace stays until the control plane ends: its deletion
        takes the namespace controller some eighty requests, one or two for each kind there is, and begins anew every
        few seconds as long as a bound pod waits for a kubelet's word. That was most of what the servers did.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.admin.api.delete(f"/api/v1/namespaces/{namespace}/pods", options)

    def remove_finalizers(self, path: str) -> None:
        """Removes the finalizers of the object at this path of the API, if it is still there."""
        try:
            self.admin.api.patch(path, {"metadata": {"finalizers": None}})
        except ApiError as error:
            if not error.not_found:  # its deletion may be over meanwhile
                raise

    def exists(self, path: str) -> bool:
        """Whether there is an object at this path of the API."""
        try:
            self.admin.api.get(path)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    @contextmanager
    def api_server_away(self) -> Iterator[None]:
        """End the API server for the length of a block; afterwards it is back at its address, with all that it knew.

        Controllers start anew: their watches back off while it is away, for up to a minute (client-go's reflector, 30 s
        and as much jitter), and the tests that follow need them at once.
        """
        with self.servers["kube-apiserver"].away():
            yield
        self.wait_until_ready()
        for name in _CONTROLLERS:
            with self.servers[name].away():
                pass

    def wait_until_ready(self) -> None:
        """Return once the API server says that it is ready; RBAC's own roles are among what it waits for."""
        wait_until(lambda: self.check_servers() and self._ready(), "the API server's /readyz")

    def check_servers(self) -> bool:
        """True; raises RuntimeError with the end of its log if a server ended by itself."""
        for server in self.servers.values():
            server.process.check_alive()
        return True

    def _ready(self) -> bool:
        try:
            self.admin.api.get("/api/v1/namespaces/kube-system")
        except ApiError:
            return False
        return self.admin.kubectl("get", "--raw", "/readyz", check=False).stdout == "ok"

    def _file(self, name: str) -> Path:
        return self.folder / f"{next(self._numbers)}-{re.sub(r'[^a-z0-9.-]', '-', name)}.kubeconfig"


AUDIT_LOG = "audit.log"
"""The file in a control plane's folder that has a line for each request, where it is started so."""


@contextmanager
def running_control_plane(
    binaries: Path, *, audited: bool = False, features: Sequence[str] = ()
) -> Iterator[ControlPlane]:
    """Start a control plane, hand it over once controllers work, and end it with all that it wrote.

    `audited`: whether the API server writes a line for each request into AUDIT_LOG. `features`: the feature gates that
    are switched on in every server, whatever this version's defaults are.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-cluster-")))
        addresses = components.Addresses(*free_ports(3))
        authority = Authority(folder / "pki")
        plane = ControlPlane(folder, binaries, addresses, authority)
        commands = plane.commands = _commands(plane, binaries, addresses, authority)
        if audited:
            commands["kube-apiserver"] += components.audit_flags(folder / "audit.json", folder / AUDIT_LOG)
        gates = [f"--feature-gates={','.join(f'{name}=true' for name in features)}"] if features else []
        for server in ("kube-apiserver", *_CONTROLLERS):
            commands[server] += gates

        def start(name: str) -> None:
            run = partial(running, name, commands[name], folder / f"{name}.log", _environment(folder), _STOP_LIMIT_S)
            plane.servers[name] = stack.enter_context(Restartable(run))

        start("etcd")
        start("kube-apiserver")
        plane.wait_until_ready()
        for controller in _CONTROLLERS:
            start(controller)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(lambda: plane.check_servers() and plane.exists(account), "the controllers work")
        yield plane


@contextmanager
def another_api_server(plane: ControlPlane, name: str, *flags: str) -> Iterator[ControlPlane]:
    """Start one more API server over a control plane's etcd; hand it over once it is ready.

    Who asks it sees the cluster as it serves it. Controllers and the scheduler stay with the first. `flags`, each as
    `--NAME=VALUE`, take the place of the first one's flags of the same names.
    """
    folder = plane.folder / name
    folder.mkdir()
    addresses = replace(plane.addresses, api_server=free_port())
    another = ControlPlane(folder, plane.binaries, addresses, plane.authority)
    given = [f"--secure-port={addresses.api_server}", *flags]
    replaced = {flag.partition("=")[0] for flag in given}
    kept = [flag for flag in plane.commands["kube-apiserver"] if flag.partition("=")[0] not in replaced]
    run = partial(running, name, [*kept, *given], folder / "kube-apiserver.log", _environment(folder), _STOP_LIMIT_S)
    with Restartable(run) as server:
        another.servers["kube-apiserver"] = server
        another.wait_until_ready()
        yield another


def _environment(folder: Path) -> dict[str, str]:
    # Fewer rounds of garbage collection: what lives for minutes may grow by some hundred megabytes.
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "GOGC": "300"}


def _commands(
    plane: ControlPlane, binaries: Path, addresses: components.Addresses, authority: Authority
) -> dict[str, list[str]]:
    serving = authority.server("kube-apiserver", ["127.0.0.1", "localhost", "10.96.0.1"])
    accounts = service_account_keys(plane.folder / "pki")
    trusted = authority.certificate
    manager, scheduler = (plane.user(f"system:kube-{name}").kubeconfig for name in ("controller-manager", "scheduler"))
    return {
        "etcd": components.etcd(binaries / "etcd", plane.folder / "etcd", addresses),
        "kube-apiserver": components.api_server(binaries / "kube-apiserver", addresses, serving, trusted, accounts),
        "kube-controller-manager": components.controller_manager(
            binaries / "kube-controller-manager", manager, trusted, accounts.key
        ),
        "kube-scheduler": components.scheduler(binaries / "kube-scheduler", scheduler),
    }
