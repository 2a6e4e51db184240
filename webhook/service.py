"""Assembles the webhook: with an API server in a cluster, or with a folder of files in standalone mode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from fairgpu.certificates import CertificateError, expires_at, utc_now
from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.connect import connect
from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.server import serve
from fairgpu.serving.tls import Chain, ChainError, read_chain_files
from fairgpu.states_client import ReadAuthority, authority_config_map, authority_file
from webhook.application import build_application
from webhook.certificates.authority import AUTHORITY_KEY, BUNDLE, LEAF, LEAF_KEY, PUBLISHED
from webhook.certificates.rotation import Places, chain_of, reconcile
from webhook.certificates.storing import FolderStore
from webhook.certificates.trust import NoConfigurations
from webhook.metrics import Measures
from webhook.settings import Certificates, Webhook

CERTIFICATES = Path("certificates", "webhook")
TIMEKEEPER_AUTHORITY = Path("certificates", "timekeeper", "ca.crt")
LOOPBACK = ("localhost", "127.0.0.1")


class Service:
    """The parts of one worker process of the webhook: its metrics, certificate chain and application.

    The server forks the workers; each calls the methods after that, in its own process.
    """

    def __init__(self, settings: Webhook, api: KubernetesAPI | None, folder: Path | None) -> None:
        self._settings = settings
        self._api = api
        self._folder = folder

    @cached_property
    def measures(self) -> Measures:
        """The metrics of this worker of the webhook."""
        return Measures()

    def chain(self) -> Chain:
        """Returns the certificate chain that the webhook serves, and publishes its expiry as a metric.

        The chain is that of the mounted Secret; in standalone mode, it is that of the folder, and is renewed if due.

        Raises:
            ChainError: there is no usable chain.
        """
        certificates = self._settings.certificates
        if self._api is not None:
            chain = read_chain_files(certificates.folder / LEAF, certificates.folder / LEAF_KEY)
        else:
            chain = chain_of(reconcile(folder_places(self._folder or Path()), _local(certificates), utc_now))
        try:
            self.measures.set_certificate_expiry(expires_at(chain.certificates_pem))
        except CertificateError as error:
            raise ChainError(str(error)) from error
        return chain

    def build(self, lifecycle: Lifecycle) -> Application:
        """Returns the application of this worker, and registers its threads with the lifecycle."""
        return build_application(lifecycle, self._settings, self.measures, self._authority(), self._api)

    def _authority(self) -> ReadAuthority:
        settings = self._settings
        if settings.states.ca_file is not None:
            return authority_file(settings.states.ca_file)
        if self._api is not None:
            return authority_config_map(self._api, settings.certificates.namespace, settings.timekeeper_ca_config_map)
        return authority_file((self._folder or Path()) / TIMEKEEPER_AUTHORITY)


def folder_places(folder: Path) -> Places:
    """Returns the places of a standalone webhook's certificates, which are files; clients trust the CA in `ca.crt`."""
    certificates = folder / CERTIFICATES
    return Places(
        configurations=NoConfigurations(),
        leaf=FolderStore(certificates, (LEAF, LEAF_KEY)),
        authorities=FolderStore(certificates, (BUNDLE, AUTHORITY_KEY, PUBLISHED)),
    )


def run(settings: Webhook, environ: Mapping[str, str], standalone: Path | None) -> int:
    """Serves admission reviews until SIGTERM, SIGINT or SIGQUIT; returns the exit status.

    Args:
        settings: the webhook's settings.
        environ: the environment, which may name a kubeconfig.
        standalone: the folder to serve from without an API server; None to serve a cluster.

    Raises:
        NoClusterError: `standalone` is None, and the configuration of the API server is missing or invalid.
    """
    api = connect(environ) if standalone is None else None
    service = Service(settings, api, standalone)
    return serve(server_options(settings, standalone=standalone is not None), service.build, service.chain)


def server_options(settings: Webhook, *, standalone: bool) -> ServerOptions:
    """Returns the options of the webhook's server; in standalone mode, it listens on loopback alone."""
    serving = settings.serving
    host = LOOPBACK[1] if standalone else serving.host
    return ServerOptions(
        name="fairgpu-webhook",
        address=Address(host, serving.port),
        metrics_address=Address(host, serving.metrics_port),
        workers=serving.workers,
        keepalive_seconds=serving.keepalive_seconds,
        drain_seconds=serving.drain_seconds,
        finish_seconds=serving.finish_seconds,
        reload_seconds=settings.certificates.check_seconds,
        access_log=serving.access_log,
    )


def _local(certificates: Certificates) -> Certificates:
    return certificates.model_copy(update={"names": (*certificates.names, *LOOPBACK)})
