"""The WSGI routes of the REST API.

They serve budgets, the ledger, sessions, orders, usage, access, the API's description, the ancestor's API, and the
dashboard's files of other versions.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from urllib.parse import urlencode

import structlog
from flask import Flask, Response, request

from fairgpu.serving.messages import Response as PlainResponse
from fairgpu.states import BudgetState
from timekeeper.api import models, openapi
from timekeeper.api.dependencies import (
    GPU_BUDGETS,
    GPU_GRANTS,
    Dependencies,
    may_correct,
    may_grant,
    may_read_all,
    may_read_budget,
    may_read_namespace,
)
from timekeeper.api.figures import Book, is_budget
from timekeeper.api.gpu_objects import KINDS
from timekeeper.api.gpu_objects import PREFIX as PREFIX_OF_GPUS
from timekeeper.api.models import (
    AccessAnswer,
    CorrectionAnswer,
    CorrectionRequest,
    GrantAnswer,
    GrantRequest,
    IncreaseRequest,
    PodReport,
    is_namespace,
)
from timekeeper.api.orders import (
    GrantOrder,
    acceptable,
    common_fields,
    correction_object,
    effective_text,
    expiry_text,
    gpu_hours_text,
    grant_object,
    known_budget,
    missing_key,
    name_of_key,
    order_name,
    place_order,
)
from timekeeper.api.paging import by_amount, cursor_after, only_parameters, page_limit, page_start
from timekeeper.api.problems import ProblemError, answer, invalid, not_found, problem_of
from timekeeper.api.reports import refuse_unless_running
from timekeeper.api.usage import PARAMETERS, Usage, as_csv, as_json, find, read_query
from timekeeper.auth.access_control import (
    AccessControl,
    Action,
    Caller,
    ForbiddenError,
    TooManyRequestsError,
    bearer_token,
)
from timekeeper.auth.signed_tokens import PodIdentity
from timekeeper.dashboard.serving import PREFIX, Assets, of_another_version, takes_gzip
from timekeeper.domain.money import Currency
from timekeeper.domain.timestamps import format_instant
from timekeeper.domain.usage import MOST_SUMS, FoldedHoursError, TooManySumsError
from timekeeper.ledger.reports import IntakeOutcome, Submission
from timekeeper.ledger.totals import Summary

_log = structlog.get_logger()

LOOP_SECONDS = 20.0
"""The longest time, in seconds, that a thread waits for an answer of the event loop."""

LEAST_BYTES = 1400
"""The least size, in bytes, of an answer that is compressed: a shorter one fits into one packet."""

LEVEL = 4
"""The gzip level: it takes half the time of the usual one, for answers larger by a tenth."""


JSON, CSV = "application/json", "text/csv"


def compressed(response: Response) -> Response:
    """Returns a response, compressed if the client accepts gzip (RFC 9110 section 12.5.3).

    A response is not compressed if it is short, or its status is not 200. A compressed response keeps the entity tag of
    the plain one, as a weak tag (section 8.8.3).
    """
    if response.status_code != 200 or response.direct_passthrough or response.content_encoding:
        return response
    response.vary.add("Accept-Encoding")
    body = response.get_data()
    if len(body) >= LEAST_BYTES and takes_gzip(request.headers.get("Accept-Encoding", "")):
        response.set_data(gzip.compress(body, LEVEL, mtime=0))
        response.content_encoding = "gzip"
        etag, _ = response.get_etag()
        if etag is not None:
            response.set_etag(etag, weak=True)
    return response


def add_page_files(app: Flask, assets: Assets) -> None:
    """Adds the WSGI route for the dashboard's files under paths that have another replica's version.

    Paths with the version of these `assets` are served by the event loop.
    """

    @app.get(f"{PREFIX}<version>/<path:name>")
    def page_file(version: str, name: str) -> Response:
        file = of_another_version(assets, name, request.headers.get("Accept-Encoding", ""))
        if file is None:
            raise not_found(f"the page has no file {name!r} in its version {version!r}")
        headers = [(key.decode("ascii"), value.decode("ascii")) for key, value in file.headers]
        return Response(file.body, file.status, headers, content_type=file.content_type.decode("ascii"))


MAX_TRIED = 100
"""The most namespaces for which a caller's rights are tried, since each costs the API server an access review."""

TRYING_SECONDS = 2.0
"""The longest time, in seconds, for which namespaces are tried, so that no person waits for slow reviews."""

_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):")
_PARTS = re.compile(r"[:/@,=]")


def add_access_route(app: Flask, parts: Dependencies) -> None:
    """Adds the route `GET /v1/access`, which says what the caller may read."""

    @app.get("/v1/access")
    def access() -> Response:
        token = bearer_token(request.headers.get("Authorization"))
        caller = parts.access.authenticate(token, request.remote_addr or "")
        access_answer = access_of(caller, parts.access, parts.book.namespaces, time.monotonic)
        return json_answer(access_answer)


def access_of(
    caller: Caller, access: AccessControl, known: Callable[[], Sequence[str]], clock: Callable[[], float]
) -> AccessAnswer:
    """Returns the answer about a caller's rights: the namespaces whose budget the caller may read.

    The list of namespaces is empty, and complete, if the caller may read all budgets.

    The answer is not complete if there are more than MAX_TRIED namespaces, or if trying them takes longer than
    TRYING_SECONDS or reaches the limit of the caller's requests.

    Args:
        access: checks the caller's rights.
        known: returns the namespaces of the ledger; called only if the caller lacks the right to read all.
        clock: a monotonic clock, in seconds.

    Raises:
        IdentityUnavailableError: the API server cannot be asked.
        TooManyRequestsError: the caller has asked too often, before any namespace was tried.
        redis.RedisError: the store does not answer.
    """
    grants = access.permits(caller, Action("create", GPU_GRANTS))
    if access.permits(caller, Action("list", GPU_BUDGETS)):
        return AccessAnswer(name=caller.name, readsAll=True, grants=grants, namespaces=[], complete=True)
    ends, readable, tried = clock() + TRYING_SECONDS, [], 0
    namespaces = likely_first(caller, known())
    for namespace in namespaces[:MAX_TRIED]:
        if clock() >= ends:
            break
        try:
            if access.permits(caller, Action("get", GPU_BUDGETS, namespace)):
                readable.append(namespace)
        except TooManyRequestsError:  # what was found so far is worth more to them than nothing
            break
        tried += 1
    complete = tried == len(namespaces)
    return AccessAnswer(name=caller.name, readsAll=False, grants=grants, namespaces=sorted(readable), complete=complete)


def likely_first(caller: Caller, known: Iterable[str]) -> list[str]:
    """Returns namespaces, each once; those that the caller is likelier to be allowed to read come first.

    The namespace of a service account comes first, even if it is not among `known`. The namespaces that the caller's
    name or groups contain follow, then all other namespaces.

    Args:
        known: the namespaces of the ledger.
    """
    own = _SERVICE_ACCOUNT.match(caller.name)
    first = [own.group(1)] if own else []
    words = {word for text in (caller.name, *caller.groups) for word in _PARTS.split(text)}
    named = sorted(known, key=lambda namespace: (namespace not in words, namespace))
    return list(dict.fromkeys([*first, *named]))


HOT = (
    ("/v1/reports", "POST"),
    ("/v1/states", "GET"),
    *((f"{PREFIX_OF_GPUS}{kind}", "GET") for kind in KINDS),
    ("/healthz", "GET"),
    ("/readyz", "GET"),
    ("/", "GET"),
)
"""The routes that the event loop serves itself, without those of the dashboard's other files."""


def build_flask(parts: Dependencies) -> Flask:
    """Builds the WSGI application with the routes that may wait for the store or the API server."""
    app = Flask("timekeeper", static_folder=None)

    def as_problem(error: Exception) -> Response:
        problem = problem_of(error)
        parts.measures.problems.labels(problem.kind).inc()
        return _as_flask(answer(problem))

    def unkept(response: Response) -> Response:
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    app.register_error_handler(Exception, as_problem)
    app.after_request(unkept)
    app.after_request(compressed)
    _add_budgets(app, parts)
    _add_ledger(app, parts)
    add_usage_routes(app, parts)
    add_grant_routes(app, parts)
    add_correction_routes(app, parts)
    _add_description(app)
    _add_other_methods(app)
    add_access_route(app, parts)
    add_page_files(app, parts.assets)
    add_ancestor_routes(app, parts)
    return app


def json_answer(answer: models.Answer) -> Response:
    """Returns an HTTP response with an answer as JSON."""
    return Response(answer.model_dump_json(), mimetype="application/json")


def _add_budgets(app: Flask, parts: Dependencies) -> None:
    @app.get("/v1/budgets")
    def budgets() -> Response:
        may_read_all(parts.access)
        only_parameters("cursor", "limit")
        limit, after = page_limit(), page_start()
        page = parts.book.budgets(after, limit)
        cursor = cursor_after(page[-1].name) if len(page) == limit else None
        uses = parts.book.present_use(page)
        listed = [models.budget_answer(figures, parts.now(), parts.currency, uses) for figures in page]
        return json_answer(models.BudgetsAnswer(budgets=listed, cursor=cursor))

    @app.get("/v1/budgets/<name>")
    def budget(name: str) -> Response:
        may_read_budget(parts.access, name)
        figures = parts.book.budget(name)
        if figures is None:
            raise not_found(f"there is no budget {name!r}; GET /v1/budgets lists those that are")
        return json_answer(_budget_answer(parts, figures))

    @app.get("/v1/namespaces/<namespace>/budget")
    def namespace_budget(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        figures = parts.book.namespace(namespace)
        budget = None if figures is None else _budget_answer(parts, figures)
        state = _state_of(parts.book, figures)
        return json_answer(models.NamespaceAnswer(namespace=namespace, budget=budget, state=state))


def _state_of(book: Book, figures: Summary | None) -> BudgetState:
    """Returns the state of a namespace: the state of the account that pays for it, or of an unused namespace.

    Args:
        figures: the figures of the account that pays for the namespace; None if no account pays for it yet.
    """
    return book.unused_state() if figures is None else figures.state


def _budget_answer(parts: Dependencies, figures: Summary) -> models.BudgetAnswer:
    uses = parts.book.present_use([figures])
    return models.budget_answer(figures, parts.now(), parts.currency, uses)


def _add_ledger(app: Flask, parts: Dependencies) -> None:
    @app.get("/v1/ledger")
    def ledger() -> Response:
        name = request.args.get("budget", "")
        may_read_budget(parts.access, name)
        only_parameters("budget", "cursor", "limit")
        limit, after = page_limit(), page_start()
        if not name:
            raise invalid("budget", name, "the name of a budget, as in /v1/ledger?budget=team-a")
        if parts.book.budget(name) is None:
            raise not_found(f"there is no budget {name!r}; GET /v1/budgets lists those that are")
        lines = parts.book.ledger(name, after, limit)
        cursor = cursor_after(lines[-1].id if lines else after)
        entries = [models.ledger_entry(line) for line in lines]
        return json_answer(models.LedgerAnswer(budget=name, entries=entries, cursor=cursor))

    @app.get("/v1/sessions")
    def sessions() -> Response:
        namespace = request.args.get("namespace")
        if namespace:
            may_read_namespace(parts.access, namespace)
        else:
            may_read_all(parts.access)
        only_parameters("namespace", "cursor", "limit", "order")
        limit, after, dearest = page_limit(), page_start(), by_amount()
        if namespace is not None and not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        if dearest:
            page = parts.book.dearest_sessions(namespace or "", limit)
        else:
            page = parts.book.sessions(namespace or "", after, limit)
        cursor = cursor_after(page[-1].session.uid) if len(page) == limit and not dearest else None
        listed = [models.session_answer(session) for session in page]
        return json_answer(models.SessionsAnswer(sessions=listed, cursor=cursor, presentUseFrom=parts.present_use))


def add_usage_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the routes of usage: `GET /v1/usage` and `GET /v1/namespaces/NAME/usage`."""

    @app.get("/v1/usage")
    def usage() -> Response:
        caller = may_read_all(parts.access)
        only_parameters(*PARAMETERS, "idle")
        with parts.asking.one_more(caller.name):
            return _usage_answer(parts, None)

    @app.get("/v1/namespaces/<namespace>/usage")
    def namespace_usage(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        only_parameters(*PARAMETERS)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        return _usage_answer(parts, namespace)


def _usage_answer(parts: Dependencies, namespace: str | None) -> Response:
    media = _media()
    now = parts.now()
    query = read_query(request.args, parts.usage_labels, now, namespace)
    try:
        usage = find(parts.store, query, now, parts.closed_days, parts.exported)
    except FoldedHoursError as error:
        kept = f"{format_instant(error.start)},{format_instant(error.end)}"
        raise invalid(
            "step" if query.step else "window",
            query.step or request.args.get("window"),
            f"a window and steps that do not divide folded hours, such as {kept}: write whole days in UTC",
        ) from error
    except TooManySumsError as error:
        allowed = (
            f"names, a window and steps that come to at most {MOST_SUMS} sums: leave names out, such as owner or user, "
            "ask for a shorter window or longer steps, or for one namespace, GET /v1/namespaces/NAME/usage"
        )
        raise invalid("aggregate", ",".join(query.aggregate), allowed) from error
    return _usage_response(usage, media, parts.currency)


def _usage_response(usage: Usage, media: str, currency: Currency | None) -> Response:
    body = as_json(usage, currency) if media == JSON else as_csv(usage, currency)
    response = Response(body, mimetype=media)
    response.set_etag(blake2b(body, digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    response.headers["Vary"] = "Accept, Authorization"
    if usage.following is not None:
        parameters = {**request.args.to_dict(), "cursor": usage.following}
        response.headers["Link"] = f'<{request.path}?{urlencode(parameters)}>; rel="next"'
    response.make_conditional(request)
    return response


def _media() -> str:
    """Returns the media type, JSON or CSV, that the request wants: by its parameter `format`, else its Accept header.

    Raises:
        ProblemError: `format` is neither json nor csv.
    """
    text = request.args.get("format")
    if text is None:
        return request.accept_mimetypes.best_match([JSON, CSV], JSON)
    media = {"json": JSON, "csv": CSV}
    if text not in media:
        raise invalid("format", text, "json or csv")
    return media[text]


def add_grant_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/grants`, which orders a grant."""

    @app.post("/v1/grants")
    def grants() -> Response:
        caller = may_grant(parts.access)
        wanted = GrantRequest.model_validate_json(request.get_data())
        name = _name_of(parts.book, caller, wanted, "grant")
        gpu_hours = gpu_hours_text("gpuHours", wanted.gpuHours, negative=True)
        order = GrantOrder(
            name=name,
            budget=wanted.budget,
            gpu_hours=gpu_hours,
            reason=wanted.reason,
            requested_by=caller.name,
            expires=expiry_text(wanted.expires, gpu_hours, parts.now()),
        )
        item = grant_object(order)
        stored, made = place_order(parts.book, item, parts.grants)
        if made:
            _log.info("grant made", grant=order.name, budget=order.budget, hours=order.gpu_hours, by=caller.name)
        common, spec = common_fields(stored, "grant")
        return _order_answer(GrantAnswer(**common, expires=spec.get("expires")), new=made)


def add_correction_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/corrections`, which orders a correction."""

    @app.post("/v1/corrections")
    def corrections() -> Response:
        caller = may_correct(parts.access)
        wanted = CorrectionRequest.model_validate_json(request.get_data())
        name = _name_of(parts.book, caller, wanted, "correction")
        item = correction_object(name, wanted, effective_text(wanted.effectivePeriod, parts.now()), caller.name)
        stored, made = place_order(parts.book, item, parts.corrections, partial(acceptable, parts.book))
        if made:
            hours = item["spec"]["gpuHours"]
            _log.info("correction made", correction=name, budget=wanted.budget, hours=hours, by=caller.name)
        common, spec = common_fields(stored, "correction")
        effective, namespace = str(spec.get("effectivePeriod", "")), spec.get("namespace")
        return _order_answer(CorrectionAnswer(**common, effectivePeriod=effective, namespace=namespace), new=made)


def _name_of(book: Book, caller: Caller, wanted: GrantRequest | CorrectionRequest, noun: str) -> str:
    """Returns the name of a wanted order: the name in the body, or else one made from the header Idempotency-Key.

    Args:
        noun: the noun for the order in the error's message: grant or correction.

    Raises:
        ProblemError: the request has neither a name nor a valid header, or no GPUBudget has the name of the order's
            budget.
    """
    name = order_name(caller.name, wanted.name, request.headers.get("Idempotency-Key"), noun)
    known_budget(book, wanted.budget)
    return name


def _order_answer(answer: GrantAnswer | CorrectionAnswer, *, new: bool) -> Response:
    return Response(answer.model_dump_json(), 201 if new else 200, mimetype="application/json")


def add_ancestor_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the three routes of the API of FairGPU's ancestor, for clients that were written for that project.

    They are `GET /budget/{ns}`, `POST /budget/{ns}/report` and `POST /budget/{ns}/increase`.
    """

    @app.get("/budget/<namespace>")
    def ancestor_budget(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        _refuse_no_namespace(namespace)
        return _ancestor_answer(parts.book, namespace)

    @app.post("/budget/<namespace>/increase")
    def ancestor_increase(namespace: str) -> Response:
        caller = may_grant(parts.access)
        _refuse_no_namespace(namespace)
        wanted = IncreaseRequest.model_validate_json(request.get_data())
        key = request.headers.get("Idempotency-Key")
        if key is None:
            raise missing_key("")
        figures = parts.book.namespace(namespace)
        if figures is None or not is_budget(figures) or figures.available is None:
            detail = f"no GPUBudget with an allowance names namespace {namespace!r}: make one, then increase it"
            raise ProblemError(409, "no-budget", detail)
        gpu_hours = gpu_hours_text("gpu_hours", wanted.gpu_hours)
        name = name_of_key(caller.name, key)
        item = grant_object(GrantOrder(name, figures.name, gpu_hours, wanted.reason, caller.name))
        _, made = place_order(parts.book, item, parts.grants)
        if made:
            _log.info("grant made", grant=name, budget=figures.name, hours=gpu_hours, by=caller.name)
        return _ancestor_answer(parts.book, namespace)

    @app.post("/budget/<namespace>/report")
    def ancestor_report(namespace: str) -> Response:
        pod = _in_loop(parts, request.headers.get("Authorization"))
        wanted = PodReport.model_validate_json(request.get_data())
        if (pod.namespace, pod.pod) != (namespace, wanted.pod_name):
            raise ForbiddenError(f"the token is that of pod {pod.namespace}/{pod.pod}: a pod reports for itself alone")
        submission = Submission(pod.uid, "", 0, parts.now())
        future = asyncio.run_coroutine_threadsafe(parts.submissions.submit(submission), parts.loop())
        outcome = future.result(LOOP_SECONDS)
        ended = parts.pods.ended(pod)
        if outcome is IntakeOutcome.NOT_RUNNING and not ended:
            refuse_unless_running(outcome, pod)
        return json_answer(models.AncestorVerdict(terminate=ended))


def _ancestor_answer(book: Book, namespace: str) -> Response:
    figures = book.namespace(namespace)
    return json_answer(models.ancestor_budget(figures, _state_of(book, figures)))


def _in_loop(parts: Dependencies, authorization: str | None) -> PodIdentity:
    """Returns the pod whose token the header Authorization has.

    The event loop checks the token, since it caches pods' tokens. Meanwhile the calling thread waits, for LOOP_SECONDS
    at most. The caller must be a thread that serves Flask: the event loop's own thread would wait for itself.

    Args:
        authorization: the value of the header; None without one.

    Raises:
        UnauthenticatedError: the token is not valid.
        IdentityUnavailableError: the keys that verify tokens are not known yet.
        TimeoutError: the event loop has not answered within LOOP_SECONDS.
        RuntimeError: the worker has not started.
    """
    return asyncio.run_coroutine_threadsafe(parts.recognise(authorization), parts.loop()).result(LOOP_SECONDS)


def _refuse_no_namespace(namespace: str) -> None:
    if not is_namespace(namespace):
        raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")


def _add_description(app: Flask) -> None:
    document = openapi.document_json()

    @app.get("/openapi.json")
    def openapi_json() -> Response:
        return Response(document, mimetype="application/json")


def _add_other_methods(app: Flask) -> None:
    """Adds the paths of the event loop's routes to Flask, which then answers other methods there with 405, not 404."""
    for path, method in HOT:
        app.add_url_rule(path, path, lambda: Response(status=204), methods=[method], provide_automatic_options=False)


def _as_flask(problem: PlainResponse) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in problem.headers}
    return Response(problem.body, problem.status, headers, content_type=problem.content_type.decode("ascii"))
