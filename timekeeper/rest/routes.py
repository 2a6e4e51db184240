"""The routes for people. They run in threads, under Flask."""

from __future__ import annotations

from flask import Flask, Response, request

from fairgpu.serving.messages import Response as PlainResponse
from fairgpu.states import BudgetState
from timekeeper.rest import answers, budget_answers, openapi
from timekeeper.rest.access import add_access_route
from timekeeper.rest.ancestor import add_ancestor_routes
from timekeeper.rest.bodies import is_namespace
from timekeeper.rest.compression import compressed
from timekeeper.rest.correcting import add_correction_routes
from timekeeper.rest.granting import add_grant_routes
from timekeeper.rest.guard import may_read_all, may_read_budget, may_read_namespace
from timekeeper.rest.page_files import add_page_files
from timekeeper.rest.paging import by_amount, cursor_after, only_parameters, page_limit, page_start
from timekeeper.rest.parts import Parts
from timekeeper.rest.problems import answer, invalid, not_found, problem_of
from timekeeper.rest.usage_routes import add_usage_routes

HOT = (("/v1/reports", "POST"), ("/v1/states", "GET"), ("/healthz", "GET"), ("/readyz", "GET"), ("/", "GET"))
"""Routes that the event loop serves itself."""


def build_flask(parts: Parts) -> Flask:
    """The WSGI application."""
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


def json_answer(answer: answers.Answer, status: int = 200) -> Response:
    """An answer model as a response."""
    return Response(answer.model_dump_json(), status, mimetype="application/json")


def _add_budgets(app: Flask, parts: Parts) -> None:
    @app.get("/v1/budgets")
    def budgets() -> Response:
        may_read_all(parts.authority)
        only_parameters("cursor", "limit")
        limit, after = page_limit(), page_start()
        found = parts.book.budgets(after, limit)
        cursor = cursor_after(found[-1].name) if len(found) == limit else None
        listed = [budget_answers.budget_answer(figures, parts.now(), parts.currency) for figures in found]
        return json_answer(budget_answers.BudgetsAnswer(budgets=listed, cursor=cursor))

    @app.get("/v1/budgets/<name>")
    def budget(name: str) -> Response:
        may_read_budget(parts.authority, name)
        figures = parts.book.budget(name)
        if figures is None:
            raise not_found(f"there is no budget {name!r}; GET /v1/budgets lists those that are")
        return json_answer(budget_answers.budget_answer(figures, parts.now(), parts.currency))

    @app.get("/v1/namespaces/<namespace>/budget")
    def namespace_budget(namespace: str) -> Response:
        may_read_namespace(parts.authority, namespace)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        figures = parts.book.namespace(namespace)
        found = None if figures is None else budget_answers.budget_answer(figures, parts.now(), parts.currency)
        state = BudgetState.UNLIMITED if figures is None else figures.state
        return json_answer(budget_answers.NamespaceAnswer(namespace=namespace, budget=found, state=state))


def _add_ledger(app: Flask, parts: Parts) -> None:
    @app.get("/v1/ledger")
    def ledger() -> Response:
        name = request.args.get("budget", "")
        may_read_budget(parts.authority, name)
        only_parameters("budget", "cursor", "limit")
        limit, after = page_limit(), page_start()
        if not name:
            raise invalid("budget", name, "the name of a budget, as in /v1/ledger?budget=team-a")
        if parts.book.budget(name) is None:
            raise not_found(f"there is no budget {name!r}; GET /v1/budgets lists those that are")
        lines = parts.book.ledger(name, after, limit)
        cursor = cursor_after(lines[-1].id if lines else after)
        entries = [answers.ledger_entry(line) for line in lines]
        return json_answer(answers.LedgerAnswer(budget=name, entries=entries, cursor=cursor))

    @app.get("/v1/sessions")
    def sessions() -> Response:
        namespace = request.args.get("namespace")
        if namespace:
            may_read_namespace(parts.authority, namespace)
        else:
            may_read_all(parts.authority)
        only_parameters("namespace", "cursor", "limit", "order")
        limit, after, dearest = page_limit(), page_start(), by_amount()
        if namespace is not None and not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        if dearest:
            found = parts.book.dearest_sessions(namespace or "", limit)
        else:
            found = parts.book.sessions(namespace or "", after, limit)
        cursor = cursor_after(found[-1].session.uid) if len(found) == limit and not dearest else None
        listed = [answers.session_answer(session) for session in found]
        return json_answer(answers.SessionsAnswer(sessions=listed, cursor=cursor))


def _add_description(app: Flask) -> None:
    document = openapi.document_json()

    @app.get("/openapi.json")
    def openapi_json() -> Response:
        return Response(document, mimetype="application/json")


def _add_other_methods(app: Flask) -> None:
    """What comes here for a hot route came with a method that it does not have."""
    for path, method in HOT:
        app.add_url_rule(path, path, lambda: Response(status=204), methods=[method], provide_automatic_options=False)


def _as_flask(problem: PlainResponse) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in problem.headers}
    return Response(problem.body, problem.status, headers, content_type=problem.content_type.decode("ascii"))
