"""The process of `fairgpu timekeeper jobs`: it watches the cluster, campaigns to lead, and runs the leader's tasks."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import redis
import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from fairgpu import leadership, names
from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.connect import connect
from fairgpu.keeping import start_thread
from fairgpu.leadership import Term
from fairgpu.serving.process_probe import Progress, serve_probe
from fairgpu.signals import call_at_end
from timekeeper.audit.auditing import AuditEnvironment, request_of
from timekeeper.audit.cluster import ClusterView, read_cluster
from timekeeper.controller.audit_job import AuditMeasures, Auditor
from timekeeper.controller.export_job import Exporter
from timekeeper.controller.leader_tasks import STUCK_SECONDS, LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import (
    BookSeries,
    ExportMeasures,
    JobMeasures,
    PresentUseMeasures,
    StoreMeasures,
)
from timekeeper.controller.present_use import PresentUseReader
from timekeeper.controller.report.announcements import NotificationSender, Receiver
from timekeeper.controller.state.books import controller_rules
from timekeeper.export.destination import destination
from timekeeper.ledger.client import Store
from timekeeper.ledger.connection import connect as connect_to_store
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.settings import JobsSettings, NotificationSettings, TimekeeperSettings
from timekeeper.sources.base import Source
from timekeeper.sources.choosing import cluster_source
from timekeeper.sources.folder import campaign_by_lock

LOOPBACK = "127.0.0.1"
LOCK_FILE = "timekeeper.lock"
RETRY_SECONDS = 1.0
SLOW_TASK_SECONDS = 1.0
"""The interval, in seconds, of tasks whose results people read, such as events."""
HEALTH_SECONDS = 15.0
"""The interval of the store's health check: a usual scrape interval of Prometheus."""
FIRST_AUDIT_SECONDS = 300.0
"""The delay of the first audit: a new leader settles everything first."""
OWN_THREADS = "own-threads"
WAITS_OF_A_COMMAND = 20
"""The waits, each of `timekeeper.redis.timeout_seconds` at most, of one command on a Redis Cluster with eight silent
nodes: for a connection to its node and an answer, then for a connection to each node, all of it twice."""

END_SECONDS = 25.0
"""The most seconds that the process goes on after it was asked to end. A task that still waits, for silent nodes of a
Redis Cluster for example, is then broken off as by a SIGKILL; the next leader settles again what was not written.
"""

_log = structlog.get_logger()


def run(
    settings: TimekeeperSettings,
    environ: Mapping[str, str],
    standalone: Path | None,
) -> int:
    """Runs the jobs process until SIGTERM or SIGINT; returns the exit status.

    Args:
        environ: the environment variables, which say where the API server is.
        standalone: the folder that stands in for a cluster; None to use the folder in the settings, or a cluster if
            they name none.

    Raises:
        NoClusterError: no folder is named, and the configuration of the API server is missing or invalid.
        CommandError: a setting is invalid.
        OSError: the address of the metrics cannot be listened on.
    """
    folder = standalone or settings.folder
    progress = Progress(STUCK_SECONDS + WAITS_OF_A_COMMAND * settings.redis.timeout_seconds)
    api = connect(environ).noting(progress.answered) if folder is None else None
    rules = controller_rules(settings)
    ending = threading.Event()
    call_at_end(ending.set, END_SECONDS)
    client = connect_to_store(settings.redis, progress.answered)
    source = cluster_source(settings, api, folder)
    term, measures = Term(time.monotonic), JobMeasures()
    measures.mode.labels(settings.mode).set(1)
    notified = settings.notifications
    most = notified.max_waiting if notified.url_file is not None else 0
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    environment = TaskEnvironment(
        client, source, term, time.time_ns, most, identity, settings.jobs.without_notice_seconds, progress
    )
    tasks = LeaderTasks(environment, rules, measures)
    measures.registry.register(BookSeries(tasks.books, settings.jobs.budget_series))
    host = settings.jobs.metrics_host if api else LOOPBACK
    server = serve_probe(host, settings.jobs.metrics_port, measures.registry, progress.lasts)
    source.start(ending.wait)
    campaign = _campaign(settings.jobs, api, folder, environment, ending)
    tasks.pod_writer.start(ending)
    scheduler = schedule(tasks, settings.jobs, writes_pods=settings.mode != "look")
    store = StoreMeasures(measures.registry)
    schedule_apart(scheduler, "health", lambda: store.look(client), HEALTH_SECONDS)
    auditor = _auditor(settings, client, source, term, measures, ending)
    schedule_apart(scheduler, "audit", auditor.audit, settings.jobs.audit_seconds, FIRST_AUDIT_SECONDS)
    exporter = _exporter(settings, client, term, measures, ending)
    sender = _sender(settings.notifications, client, term, measures, ending)
    _read_present_use(settings, client, term, tasks, measures, ending)
    ending.wait()
    scheduler.shutdown(wait=True)
    answer = settings.redis.timeout_seconds
    _join((campaign, answer), (sender, notified.timeout_seconds), (exporter, answer))
    server.shutdown()
    server.server_close()
    client.close()
    return 0


def _join(*threads: tuple[threading.Thread | None, float]) -> None:
    for thread, seconds in threads:
        if thread is not None:
            thread.join(seconds)


def _auditor(
    settings: TimekeeperSettings,
    client: Store,
    source: Source,
    term: Term,
    measures: JobMeasures,
    ending: threading.Event,
) -> Auditor:
    def look() -> ClusterView | None:
        return read_cluster(source.mirrors, settings.metering.default_budget)

    audit_environment = AuditEnvironment(client, look, time.time_ns, ending.wait)
    return Auditor(audit_environment, request_of(settings), source, term, AuditMeasures(measures.registry))


def _sender(
    settings: NotificationSettings, client: Store, term: Term, measures: JobMeasures, ending: threading.Event
) -> threading.Thread | None:
    if settings.url_file is None:
        return None
    receiver = Receiver(settings.url_file, settings.secret_file, settings.ca_file, settings.timeout_seconds)
    sender = NotificationSender(client, receiver, term, measures.notifications, measures.notifications_pending)
    return start_thread("sender", partial(sender.run, ending.wait, time.time, random.random), ending.wait)


def _exporter(
    settings: TimekeeperSettings, client: Store, term: Term, measures: JobMeasures, ending: threading.Event
) -> threading.Thread | None:
    export_measures = ExportMeasures(measures.registry)
    place = destination(settings.export)
    if place is None:
        return None
    exporter = Exporter(client, place, term, settings.usage.hourly_days, export_measures)
    return start_thread("exporter", partial(exporter.run, ending.wait, time.time_ns), ending.wait)


def _read_present_use(
    settings: TimekeeperSettings,
    client: Store,
    term: Term,
    tasks: LeaderTasks,
    measures: JobMeasures,
    ending: threading.Event,
) -> None:
    """Starts the thread that asks Prometheus, if one is configured. The process ends without waiting for it."""
    if settings.prometheus.url is None:
        return
    present_use = PresentUseMeasures(measures.registry)
    reader = PresentUseReader(settings.prometheus, client, term, tasks.open_sessions, present_use)
    start_thread("present-use", partial(reader.run, ending.wait, time.time_ns), ending.wait)


def schedule(tasks: LeaderTasks, settings: JobsSettings, *, writes_pods: bool = True) -> BackgroundScheduler:
    """Schedules the leader's tasks in one thread, since they share the leader's state; returns the running scheduler.

    Args:
        writes_pods: whether to include the tasks that decide on writes to pods or write events for people.
    """
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it logs each run, and each delay
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(1), OWN_THREADS: ThreadPoolExecutor(2)},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        timezone="UTC",
    )
    jobs: list[tuple[Callable[[], None], float]] = [
        (tasks.react, settings.react_seconds),
        (tasks.settle, settings.settle_seconds),
        (tasks.notify, SLOW_TASK_SECONDS),
        (tasks.archive, SLOW_TASK_SECONDS),
        (tasks.write, settings.status_seconds),
        (tasks.write_on, settings.react_seconds),
    ]
    if writes_pods:
        jobs += [
            (tasks.release, settings.react_seconds),
            (tasks.remove_finalizers, settings.react_seconds),
            (tasks.record_events, SLOW_TASK_SECONDS),
            (tasks.label, SLOW_TASK_SECONDS),
            (tasks.evict, SLOW_TASK_SECONDS),
        ]
    for job, seconds in jobs:
        scheduler.add_job(job, "interval", seconds=seconds, id=job.__name__, next_run_time=datetime.now(UTC))
    scheduler.start()
    return scheduler


def schedule_apart(
    scheduler: BackgroundScheduler, name: str, job: Callable[[], None], seconds: float, first: float = 0
) -> None:
    """Schedules a job in a separate thread; the job must use nothing of the leader's state.

    Args:
        name: the job's id.
        seconds: the interval between two runs.
        first: the seconds until the first run.
    """
    begin = datetime.now(UTC) + timedelta(seconds=first)
    scheduler.add_job(job, "interval", seconds=seconds, id=name, executor=OWN_THREADS, next_run_time=begin)


def _campaign(
    settings: JobsSettings,
    api: KubernetesAPI | None,
    folder: Path | None,
    environment: TaskEnvironment,
    ending: threading.Event,
) -> threading.Thread:
    def floor() -> int:
        return highest_fencing_token(environment.client)

    def campaign() -> None:
        if api is None:
            _campaign_for_lock((folder or Path()) / LOCK_FILE, environment.term, floor, ending)
            return
        options = leadership.LeaseOptions(
            names.SYSTEM_NAMESPACE,
            settings.lease_name,
            environment.holder,
            settings.lease_seconds,
            settings.lease_seconds / 5,
        )
        leadership.campaign(api, options, environment.term, floor, time.monotonic, ending.wait)

    return start_thread("campaign", campaign, ending.wait)


def _campaign_for_lock(file: Path, term: Term, floor: Callable[[], int], ending: threading.Event) -> None:
    while not ending.is_set():
        try:
            campaign_by_lock(file, term, floor, ending.wait)
        except redis.RedisError as error:
            _log.warning("no term begun: the store does not answer", error=str(error))
            ending.wait(RETRY_SECONDS)
