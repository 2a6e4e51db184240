"""The command line of each component, as far as it differs from its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.control_plane.certificates import Files

IDLE_CONTROLLERS = (
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "service-cidr-controller",
    "service-lb-controller",
    "ttl-controller",
    "volumeattributesclass-protection-controller",
)


@dataclass(frozen=True)
class Addresses:
    """The ports at which the servers listen, on 127.0.0.1."""

    etcd: int
    etcd_peers: int
    api_server: int

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.api_server}"


def etcd(binary: Path, data: Path, addresses: Addresses) -> list[str]:
    """Etcd without fsync: what a power cut would lose, the end of the test removes anyway."""
    clients, peers = (f"http://127.0.0.1:{port}" for port in (addresses.etcd, addresses.etcd_peers))
    return [
        str(binary),
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--log-level=warn",
    ]


def api_server(
    binary: Path, addresses: Addresses, serving: Files, client_authority: Path, service_accounts: Files
) -> list[str]:
    """The API server with RBAC, the node authorizer and the default admission plugins with NodeRestriction."""
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{addresses.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={addresses.api_server}",
        "--advertise-address=192.0.2.1",  # RFC 5737: an address of no host. A loopback address is refused here.
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={client_authority}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-account-issuer={addresses.server}",
        f"--service-account-jwks-uri={addresses.server}/openid/v1/jwks",
        f"--service-account-key-file={service_accounts.certificate}",
        f"--service-account-signing-key-file={service_accounts.key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--profiling=false",
        "--shutdown-delay-duration=0",
    ]


def audit_flags(policy: Path, log: Path) -> list[str]:
    """The API server's flags for a log of every request by its metadata."""
    policy.write_text('{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}')
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-mode=blocking-strict"]


def controller_manager(binary: Path, kubeconfig: Path, authority: Path, service_account_key: Path) -> list[str]:
    """The controllers, each under its own account as in a production cluster.

    Nodes here have no kubelet that renews their Lease. They count as ready until a test says otherwise. What works for
    volumes, Services, certificates and autoscaling finds nothing to do here, and would only be started.
    """
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={service_account_key}",
        "--node-monitor-grace-period=24h",
        f"--controllers=*,{','.join(f'-{name}' for name in IDLE_CONTROLLERS)}",
        "--profiling=false",
    ]


def scheduler(binary: Path, kubeconfig: Path) -> list[str]:
    """The stock scheduler, for pods of the profile `default-scheduler` alone."""
    return [str(binary), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", "--profiling=false"]
