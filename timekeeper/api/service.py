"""Assembles the REST service: over an API server in a cluster, over a folder in standalone mode."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import redis
import structlog

from fairgpu.certificates import expires_at, utc_now
from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.connect import connect
from fairgpu.names import REDIS_SERVICE
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.server import serve
from fairgpu.serving.tls import Chain, ChainError
from timekeeper.api.application import Loop, RestApplication, build_application
from timekeeper.api.dependencies import Dependencies
from timekeeper.api.exported_months import ExportedMonths
from timekeeper.api.figures import Book
from timekeeper.api.gpu_objects import GPUWatches
from timekeeper.api.metrics import Measures
from timekeeper.api.models import MAX_BODY_BYTES
from timekeeper.api.orders import ClusterOrders, FolderOrders, NoOrders, OrderStore
from timekeeper.api.pods import ClusterPods, EndedPods, FolderPods, PodReader
from timekeeper.api.reports import PAUSE_SECONDS, Batcher, ReportExecutor
from timekeeper.api.states_feed import StatesFeed
from timekeeper.api.usage import Asking, ClosedDays
from timekeeper.auth.access_control import AccessControl, CachingAccessControl
from timekeeper.auth.folder import FolderAccessControl, read_issuer
from timekeeper.auth.signed_tokens import KeySet, PodAuthenticator, PodTokens
from timekeeper.auth.token_review import ClusterReviewer, fetch_issuer
from timekeeper.certificates import ClusterVault, FolderVault, Vault, keep_store_certificate, read_chain, service_names
from timekeeper.dashboard.serving import read_assets
from timekeeper.domain.money import SECOND, Currency
from timekeeper.export.destination import destination
from timekeeper.ledger.connection import MemoryWatch
from timekeeper.ledger.connection import connect as connect_to_store
from timekeeper.ledger.reading import read_changes
from timekeeper.ledger.reports import ReportIntake
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.kubernetes import CORRECTIONS

_log = structlog.get_logger()

LOOPBACK = ("127.0.0.1", "localhost")
CHAIN_CHECK_SECONDS = 60.0


ALLOWANCES = {"config-map": "the ConfigMap fairgpu-budgets", "objects": "the GPUBudget"}
"""The object in which a budget's allowance is changed, keyed by the value of the setting `budgets_from`."""


class WorkerEnvironment:
    """The cluster that a worker uses: an API server, or the folder that stands in for it. Each worker makes one."""

    def __init__(
        self, api: KubernetesAPI | None, folder: Path | None, *, own_audience_alone: bool = False, allowances: str = ""
    ) -> None:
        """Makes the environment from an API server, or from a folder if `api` is None.

        Args:
            own_audience_alone: whether people's tokens must be of the timekeeper's audience.
            allowances: in the mode look, which takes no orders, the object in which budgets' allowances are changed, as
                errors name it; empty in any other mode.
        """
        self._allowances = allowances
        self._own_audience_alone = own_audience_alone
        self._api = api
        self._folder = folder or Path()

    @property
    def api(self) -> KubernetesAPI | None:
        """The API server; None if a folder stands in for it."""
        return self._api

    @cached_property
    def keys(self) -> KeySet:
        """The public keys with which tokens are verified, fetched from the API server or read from the folder."""
        api, folder = self._api, self._folder
        return KeySet(lambda: fetch_issuer(api) if api else read_issuer(folder), time.monotonic)

    @cached_property
    def access(self) -> AccessControl:
        """The access control for people and services."""
        if self._api:
            access = ClusterReviewer(self._api, self.keys, own_audience_alone=self._own_audience_alone)
            return CachingAccessControl(access, time.monotonic)
        return FolderAccessControl(self._folder, self.keys)

    @property
    def grants(self) -> OrderStore:
        """The store of GPUGrants: the API server or the folder; in the mode look, a store that accepts none."""
        if self._allowances:
            return NoOrders(self._allowances)
        return ClusterOrders(self._api) if self._api else FolderOrders(self._folder, time.time_ns)

    @property
    def corrections(self) -> OrderStore:
        """The store of GPUCorrections: the API server or the folder; in the mode look, a store that accepts none."""
        if self._allowances:
            return NoOrders(self._allowances)
        if self._api:
            return ClusterOrders(self._api, CORRECTIONS)
        return FolderOrders(self._folder, time.time_ns, "GPUCorrection")

    @property
    def pods(self) -> PodReader:
        """The reader of single pods, from the API server or from the folder in its place."""
        return ClusterPods(self._api) if self._api else FolderPods(self._folder)

    @cached_property
    def vault(self) -> Vault:
        """The store of certificates and their keys: the API server's Secrets, or the folder."""
        return ClusterVault(self._api) if self._api else FolderVault(self._folder)


class Service:
    """Creates the application, the metrics and the certificate chain of a worker of the REST API."""

    def __init__(self, settings: TimekeeperSettings, api: KubernetesAPI | None, folder: Path | None) -> None:
        self._settings = settings
        self._environment = WorkerEnvironment(
            api,
            folder,
            own_audience_alone=settings.serve.people_tokens == "own-audience",
            allowances=ALLOWANCES[settings.budgets_from] if settings.mode == "look" else "",
        )
        self._keeps_store_certificate = api is not None and settings.redis.is_bundled
        # In a cluster, loopback is where a port is forwarded to.
        self._names = [*service_names(), *settings.serve.certificate_names, *LOOPBACK]

    @cached_property
    def measures(self) -> Measures:
        """The worker's metrics, made at the first use, which must come after the process was forked."""
        return Measures()

    def chain(self) -> Chain:
        """Returns the certificate chain that the server presents now; makes or renews the certificates if that is due.

        The certificate of the Redis that FairGPU's manifests bring is also made or renewed, if that Redis is used in a
        cluster; a failure of this is only logged.

        Raises:
            ChainError: a stored certificate of the REST API cannot be read, written or used.
        """
        chain = read_chain(self._environment.vault, self._names, utc_now)
        if self._keeps_store_certificate:
            self._keep_store_certificate()
        self.measures.set_certificate_expiry(expires_at(chain.certificates_pem))
        return chain

    def _keep_store_certificate(self) -> None:
        """Makes or renews the certificate of the manifests' Redis; a failure is logged.

        Without the certificate Redis does not start, or stops within months. The REST service starts all the same.
        """
        try:
            keep_store_certificate(self._environment.vault, service_names(REDIS_SERVICE), utc_now)
        except ChainError as error:
            _log.error("certificate of the store not kept", error=str(error))

    def build(self, lifecycle: Lifecycle) -> RestApplication:
        """Builds the ASGI application of a worker; opens no connection before the worker starts."""
        store = connect_to_store(self._settings.redis)
        memory = MemoryWatch(store, time.monotonic)
        reports = ReportExecutor(ReportIntake(store, PAUSE_SECONDS * SECOND, memory.is_full))
        loop, keys, measures = Loop(), self._environment.keys, self.measures
        lifecycle.on_start(keys.refresh)
        parts = Dependencies(
            book=Book(store, time.time_ns),
            store=store,
            usage_labels=self._settings.usage.labels,
            access=self._environment.access,
            recognise=PodAuthenticator(PodTokens(keys, time.time)),
            grants=self._environment.grants,
            corrections=self._environment.corrections,
            pods=EndedPods(self._environment.pods, time.monotonic),
            feed=StatesFeed(),
            submissions=Batcher(reports.take, measures.report_batch.observe),
            loop=loop,
            now=time.time_ns,
            report_interval_seconds=self._settings.serve.report_interval_seconds,
            measures=measures,
            currency=currency_of(self._settings),
            assets=read_assets(),
            asking=Asking(),
            closed_days=ClosedDays(),
            present_use=None if self._settings.prometheus.url is None else "prometheus",
            exported=self._exported(store),
        )
        lifecycle.on_stop(store.close)
        lifecycle.on_stop(reports.close)
        proxies = self._settings.serve.trusted_proxies
        api = self._environment.api
        gpus = None if api is None else GPUWatches(api, lifecycle.ending.wait, random.random, loop)
        return build_application(lifecycle, parts, lambda since: read_changes(store, since), loop, proxies, gpus)

    def _exported(self, store: redis.Redis) -> ExportedMonths | None:
        settings = self._settings
        place = destination(settings.export)
        if place is None:
            return None
        return ExportedMonths(store, place, settings.usage.months, settings.export.cache_mib << 20)


def run(settings: TimekeeperSettings, environ: Mapping[str, str], standalone: Path | None) -> int:
    """Serves the REST API until a signal ends it; returns the exit status.

    Args:
        environ: the environment variables, which name the API server.
        standalone: the folder that stands in for a cluster; None to use the folder in the settings, or a cluster if the
            settings name no folder.

    Raises:
        NoClusterError: no folder is named, and the configuration of the API server is missing or invalid.
    """
    folder = standalone or settings.folder
    api = connect(environ) if folder is None else None
    service = Service(settings, api, folder)
    return serve(server_options(settings, standalone=folder is not None), service.build, service.chain)


def currency_of(settings: TimekeeperSettings) -> Currency | None:
    """Returns the currency in which amounts are displayed beside GPU-hours; None if the settings name none."""
    currency = settings.metering.currency
    return None if currency is None else Currency(currency.code, currency.per_gpu_hour)


def server_options(settings: TimekeeperSettings, *, standalone: bool) -> ServerOptions:
    """Returns the options of the REST API's server.

    Args:
        standalone: whether a folder stands in for a cluster: the server then listens on loopback only.
    """
    served = settings.serve
    host = LOOPBACK[0] if standalone else served.host
    return ServerOptions(
        name="fairgpu-timekeeper",
        address=Address(host, served.port),
        metrics_address=Address(host, served.metrics_port),
        workers=served.workers,
        max_body_bytes=MAX_BODY_BYTES,
        reload_seconds=CHAIN_CHECK_SECONDS,
        max_connections=served.max_connections,
        drain_seconds=0.0 if standalone else served.drain_seconds,
        access_log=served.access_log,
    )
