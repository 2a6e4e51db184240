"""The process of `fairgpu timekeeper jobs`: it watches, campaigns to lead, and works while it does."""

from __future__ import annotations

import logging
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import redis
import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from fairgpu import names
from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.connect import connect
from timekeeper.audit.asking import question_of
from timekeeper.audit.auditing import Surroundings
from timekeeper.audit.world import World as AuditedWorld
from timekeeper.audit.world import see
from timekeeper.export.places import destination
from timekeeper.jobs.auditing import AuditMeasures, Auditor
from timekeeper.jobs.exporting import Exporter
from timekeeper.jobs.measures import ExportMeasures, JobMeasures, serve_measures
from timekeeper.jobs.memory.rules import keeper_rules
from timekeeper.jobs.news.delivering import Courier, Receiver
from timekeeper.jobs.news.series import BookSeries
from timekeeper.jobs.round.desk import Step
from timekeeper.jobs.store_health import StoreMeasures
from timekeeper.jobs.work import Work, World
from timekeeper.leadership import file_lock, lease
from timekeeper.leadership.term import Term
from timekeeper.settings import JobsSettings, NotificationSettings, TimekeeperSettings
from timekeeper.sources.cluster import ClusterSource
from timekeeper.sources.folder import FolderSource
from timekeeper.sources.source import Source
from timekeeper.store.book import highest_epoch
from timekeeper.store.connection import connect as connect_to_store

LOOPBACK = "127.0.0.1"
LOCK_FILE = "timekeeper.lock"
RETRY_SECONDS = 1.0
TELL_SECONDS = 1.0
"""How often events are written: people read them."""
HEALTH_SECONDS = 15.0
"""How often the store is asked how it is: Prometheus usually asks us that often."""
FIRST_AUDIT_SECONDS = 300.0
"""A new leader has to find its feet before its books are held to anything."""
BESIDE = "beside"
STUCK_SECONDS = 120.0
"""Without any job ending for so long, the process is not healthy."""

_log = structlog.get_logger()


def run(
    settings: TimekeeperSettings,
    environ: Mapping[str, str],
    standalone: Path | None,
    step: Step = lambda _name: None,
) -> int:
    """Works until SIGTERM or SIGINT; the exit status.

    Raises:
        NoClusterError: it is not to run standalone, and no API server is to be found.
        CommandError: a setting cannot be used.
    """
    folder = standalone or settings.folder
    api = connect(environ) if folder is None else None
    rules = keeper_rules(settings)
    ending = _told_to_end()
    client = connect_to_store(settings.redis)
    source = _source(api, folder, settings.usage.labels)
    term, measures = Term(time.monotonic), JobMeasures()
    notified = settings.notifications
    most = notified.max_waiting if notified.url_file is not None else 0
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    world = World(client, source, term, time.time_ns, most, identity, settings.jobs.without_notice_seconds)
    work = Work(world, rules, measures, step)
    measures.registry.register(BookSeries(work.books, settings.jobs.budget_series))
    host = settings.jobs.metrics_host if api else LOOPBACK
    server = serve_measures(host, settings.jobs.metrics_port, measures, lambda: _healthy(work))
    source.start(ending.wait)
    campaign = _campaign(settings.jobs, api, folder, world, ending)
    work.pod_writer.start(ending)
    scheduler = schedule(work, settings.jobs)
    store = StoreMeasures(measures.registry)
    beside(scheduler, "health", lambda: store.look(client), HEALTH_SECONDS)
    auditor = _auditor(settings, client, source, term, measures, ending)
    beside(scheduler, "audit", auditor.audit, settings.jobs.audit_seconds, FIRST_AUDIT_SECONDS)
    exporter = _exporter(settings, client, term, measures, ending)
    courier = _courier(settings.notifications, client, term, measures, ending)
    ending.wait()
    scheduler.shutdown(wait=True)
    answer = settings.redis.timeout_seconds
    _join((campaign, answer), (courier, notified.timeout_seconds), (exporter, answer))
    server.shutdown()
    server.server_close()
    client.close()
    return 0


def _told_to_end() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    return ending


def _join(*threads: tuple[threading.Thread | None, float]) -> None:
    """Waits for the end of each thread that there is, for so many seconds at most."""
    for thread, seconds in threads:
        if thread is not None:
            thread.join(seconds)


def _source(api: KubernetesAPI | None, folder: Path | None, kept_labels: Sequence[str]) -> Source:
    if api is None:
        return FolderSource(folder or Path(), time.time_ns)
    return ClusterSource(api, time.time_ns, random.random, kept_labels)


def _auditor(
    settings: TimekeeperSettings,
    client: redis.Redis,
    source: Source,
    term: Term,
    measures: JobMeasures,
    ending: threading.Event,
) -> Auditor:
    def look() -> AuditedWorld | None:
        return see(source.mirrors, settings.metering.default_budget)

    around = Surroundings(client, look, time.time_ns, ending.wait)
    return Auditor(around, question_of(settings), source, term, AuditMeasures(measures.registry))


def _courier(
    settings: NotificationSettings, client: redis.Redis, term: Term, measures: JobMeasures, ending: threading.Event
) -> threading.Thread | None:
    if settings.url_file is None:
        return None
    receiver = Receiver(settings.url_file, settings.secret_file, settings.ca_file, settings.timeout_seconds)
    courier = Courier(client, receiver, term, measures.notifications, measures.notifications_pending)
    arguments = (ending.wait, time.time, random.random)
    thread = threading.Thread(target=courier.run, args=arguments, name="courier", daemon=True)
    thread.start()
    return thread


def _exporter(
    settings: TimekeeperSettings, client: redis.Redis, term: Term, measures: JobMeasures, ending: threading.Event
) -> threading.Thread | None:
    told = ExportMeasures(measures.registry)
    place = destination(settings.export)
    if place is None:
        return None
    exporter = Exporter(client, place, term, settings.usage.hourly_days, told)
    arguments = (ending.wait, time.time_ns)
    thread = threading.Thread(target=exporter.run, args=arguments, name="exporter", daemon=True)
    thread.start()
    return thread


def schedule(work: Work, settings: JobsSettings) -> BackgroundScheduler:
    """Starts the jobs: one thread does them all, so that no two touch the books at once."""
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it tells of each run, and of each that waits
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(1), BESIDE: ThreadPoolExecutor(2)},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        timezone="UTC",
    )
    jobs: list[tuple[Callable[[], None], float]] = [
        (work.react, settings.react_seconds),
        (work.settle, settings.settle_seconds),
        (work.release, settings.react_seconds),
        (work.let_go, settings.react_seconds),
        (work.tell, TELL_SECONDS),
        (work.evict, TELL_SECONDS),
        (work.notify, TELL_SECONDS),
        (work.archive, TELL_SECONDS),
        (work.write, settings.status_seconds),
        (work.write_on, settings.react_seconds),
    ]
    for job, seconds in jobs:
        scheduler.add_job(job, "interval", seconds=seconds, id=job.__name__, next_run_time=datetime.now(UTC))
    scheduler.start()
    return scheduler


def beside(
    scheduler: BackgroundScheduler, name: str, job: Callable[[], None], seconds: float, first: float = 0
) -> None:
    """Adds what touches no books, and so need not wait for those that do; its first run is so many seconds from now."""
    begin = datetime.now(UTC) + timedelta(seconds=first)
    scheduler.add_job(job, "interval", seconds=seconds, id=name, executor=BESIDE, next_run_time=begin)


def _campaign(
    settings: JobsSettings,
    api: KubernetesAPI | None,
    folder: Path | None,
    world: World,
    ending: threading.Event,
) -> threading.Thread:
    def floor() -> int:
        return highest_epoch(world.client)

    def campaign() -> None:
        if api is None:
            _campaign_for_file((folder or Path()) / LOCK_FILE, world.term, floor, ending)
            return
        options = lease.LeaseOptions(
            names.SYSTEM_NAMESPACE,
            settings.lease_name,
            world.holder,
            settings.lease_seconds,
            settings.lease_seconds / 5,
        )
        lease.campaign(api, options, world.term, floor, time.monotonic, ending.wait)

    thread = threading.Thread(target=campaign, name="campaign", daemon=True)
    thread.start()
    return thread


def _campaign_for_file(file: Path, term: Term, floor: Callable[[], int], ending: threading.Event) -> None:
    while not ending.is_set():
        try:
            file_lock.campaign(file, term, floor, ending.wait)
        except redis.RedisError as error:
            _log.warning("no term begun: the store does not answer", error=str(error))
            ending.wait(RETRY_SECONDS)


def _healthy(work: Work) -> bool:
    return time.monotonic() - work.progressed_at < STUCK_SECONDS
