"""Generates the REST API's description (OpenAPI 3.1) from the models by which requests are read and answers written."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from timekeeper.api import gpu_objects, models, usage
from timekeeper.api.gpu_objects import GPU_NODES, GPU_PODS
from timekeeper.api.models import UsageAnswer
from timekeeper.api.paging import DEFAULT_LIMIT, MAX_CURSOR_LENGTH, MAX_LIMIT
from timekeeper.domain.usage import PLAIN
from timekeeper.domain.windows import FORECAST_ENDS, STEPS, WINDOWS

Document = dict[str, Any]

_ANSWERS = (
    models.BudgetsAnswer,
    models.BudgetAnswer,
    models.NamespaceAnswer,
    models.AccessAnswer,
    models.LedgerAnswer,
    models.SessionsAnswer,
    UsageAnswer,
    models.GrantAnswer,
    models.CorrectionAnswer,
    models.ReportAnswer,
    models.StatesAnswer,
    models.GPUNodesAnswer,
    models.GPUPodsAnswer,
    models.AncestorBudget,
    models.AncestorVerdict,
    models.Health,
    models.Problem,
)
_BODIES = (models.GrantRequest, models.CorrectionRequest, models.Report, models.IncreaseRequest, models.PodReport)

_STATUSES = {
    400: "The body is no JSON, or a header is missing.",
    401: "No valid token was sent.",
    403: "The caller may not do this.",
    404: "There is nothing of that name.",
    409: "It contradicts what is there.",
    410: "Not all changes since that resourceVersion are known: list again.",
    413: "The body is too long.",
    422: "A field or parameter cannot be used; `errors` names it.",
    429: "Too often: of a pod, one report a second; of a caller, two questions about all namespaces at a time, and "
    "what makes the API server be asked. Retry-After says when.",
    503: "Not now; Retry-After says when.",
}
_LATER = (429, 503)
_READING = (401, 403, 429, 503)
_WRITING = (400, 401, 403, 413, 422, 429, 503)
_REPORTING = (400, 401, 403, 413, 422, 429, 503)


def document() -> Document:
    """Returns the description of the REST API (OpenAPI 3.1)."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "FairGPU timekeeper",
            "version": version("fairgpu"),
            "description": "Budgets of GPU-hours, and what teams have spent of them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": {
            **_budget_paths(),
            **_book_paths(),
            **_usage_paths(),
            **_pod_paths(),
            **_gpu_paths(),
            **_ancestor_paths(),
            **_open_paths(),
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "schemas": _schemas(),
        },
    }


def document_json() -> bytes:
    """Returns the description of the REST API (OpenAPI 3.1) as the JSON that `/openapi.json` serves."""
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2)


def _budget_paths() -> Document:
    return {
        "/v1/access": _get("The caller, and the namespaces that the caller may read", "AccessAnswer", (401, 429, 503)),
        "/v1/budgets": _get("Budgets, by name", "BudgetsAnswer", (*_READING, 422), _page()),
        "/v1/budgets/{name}": _get("One budget", "BudgetAnswer", (*_READING, 404), [_path("name", "Its name.")]),
        "/v1/namespaces/{namespace}/budget": _get(
            "The budget that pays for a namespace", "NamespaceAnswer", (*_READING, 422), [_namespace()]
        ),
        "/v1/states": _get(
            "States of all namespaces, or what changed since a cursor; waits for a change",
            "StatesAnswer",
            (*_READING, 422),
            [
                _query("since", "The cursor of an earlier answer.", {"type": "string", "maxLength": 80}),
                _query("wait", "Seconds to wait; above 60 counts as 60.", {"type": "number", "minimum": 0}),
            ],
        ),
    }


def _book_paths() -> Document:
    cursor, limit = _page()
    budget = {**_query("budget", "The budget of the ledger.", {"type": "string", "minLength": 1}), "required": True}
    order = _query("order", "amount: the dearest first, in one page.", {"type": "string", "enum": ["uid", "amount"]})
    namespace = _query("namespace", "Of this namespace alone.", _namespace()["schema"])
    return {
        "/v1/ledger": _get(
            "A budget's ledger, oldest entry first", "LedgerAnswer", (*_READING, 404, 422), [budget, cursor, limit]
        ),
        "/v1/sessions": _get("Open sessions", "SessionsAnswer", (*_READING, 422), [namespace, cursor, limit, order]),
        "/v1/grants": {
            "post": _operation(
                "Give a budget money, or take some away",
                {201: ("The grant was made.", "GrantAnswer"), 200: ("It was made before.", "GrantAnswer")},
                (*_WRITING, 409),
                [_idempotency_key(required=False)],
                body="GrantRequest",
            )
        },
        "/v1/corrections": {
            "post": _operation(
                "Correct a budget's spending in a period",
                {
                    201: ("The correction was made.", "CorrectionAnswer"),
                    200: ("It was made before.", "CorrectionAnswer"),
                },
                (*_WRITING, 409),
                [_idempotency_key(required=False)],
                body="CorrectionRequest",
            )
        },
    }


def _usage_paths() -> Document:
    text: Document = {"type": "string", "minLength": 1}
    bounds = {
        "type": "integer",
        "minimum": 1,
        "maximum": usage.MAX_LIMIT,
        "default": usage.DEFAULT_LIMIT,
    }
    window = _query("window", f"The time, in UTC: {WINDOWS}.", text)
    parameters = [
        {**window, "required": True},
        _query("step", f"The length of a step: {STEPS}; the window as a whole if absent.", text),
        _query(
            "aggregate",
            f"A comma list of {', '.join(PLAIN)} and label:KEY for the labels that the admin keeps.",
            {**text, "default": "namespace"},
        ),
        _query("limit", "Items on a page.", bounds),
        _query("cursor", "The `next` of the page before.", {"type": "string", "maxLength": usage.MAX_CURSOR}),
        _query("format", "Instead of the Accept header.", {"type": "string", "enum": ["json", "csv"]}),
        _query("forecast", f"Up to when to forecast what is billed: {FORECAST_ENDS}.", text),
    ]
    idle = _query(
        "idle",
        "Whether to add capacity that no pod held, as the key __idle__; `model` adds it for each model, if aggregate "
        "has model.",
        {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["model"]}], "default": False},
    )
    everywhere = _get("What was used", "UsageAnswer", (*_READING, 422), [*parameters, idle])
    here = _get("What a namespace used", "UsageAnswer", (*_READING, 422), [_namespace(), *parameters])
    for path in (everywhere, here):
        responses = path["get"]["responses"]
        responses["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
        responses["200"]["headers"] = {
            "ETag": {"description": "Sent again in If-None-Match, it saves the answer.", "schema": {"type": "string"}},
            "Link": {"description": "The next page, if there is one.", "schema": {"type": "string"}},
        }
        responses["304"] = {"description": "As it was when that ETag was given."}
    return {"/v1/usage": everywhere, "/v1/namespaces/{namespace}/usage": here}


def _pod_paths() -> Document:
    operation = _operation(
        "A pod's sidecar reports what its containers used",
        {200: ("Taken, or older than what was taken.", "ReportAnswer")},
        _REPORTING,
        body="Report",
    )
    return {"/v1/reports": {"post": operation}}


def _gpu_paths() -> Document:
    flag: Document = {"type": "boolean", "default": False}
    lasts = {"type": "integer", "minimum": 1, "default": gpu_objects.DEFAULT_SECONDS}
    parameters = [
        _query("watch", "Whether to answer with each change, as a line of JSON of its own, as it happens.", flag),
        _query("resourceVersion", "Of an earlier answer, from which a watch goes on.", {"type": "string"}),
        _query("timeoutSeconds", f"How long a watch lasts; above {gpu_objects.MAX_SECONDS} counts as that.", lasts),
        _query("allowWatchBookmarks", "Whether a quiet watch names its resourceVersion now and then.", flag),
    ]
    namespace = _query("namespace", "Of this namespace alone.", _namespace()["schema"])
    problems = (*_READING, 404, 410, 422)
    nodes = _get("Nodes with GPUs, and what pods hold of each", "GPUNodesAnswer", problems, parameters)
    pods = _get("GPU pods: what they hold, or why they wait", "GPUPodsAnswer", problems, [*parameters, namespace])
    for path in (nodes, pods):
        path["get"]["responses"]["200"]["content"][gpu_objects.JSON_LINES.decode()] = {"schema": {"type": "string"}}
    return {f"{gpu_objects.PREFIX}{GPU_NODES}": nodes, f"{gpu_objects.PREFIX}{GPU_PODS}": pods}


def _ancestor_paths() -> Document:
    where = [_namespace()]
    increase = _operation(
        "Give a namespace's budget money",
        {200: ("The budget as it is now.", "AncestorBudget")},
        (*_WRITING, 409),
        [*where, _idempotency_key(required=True)],
        body="IncreaseRequest",
    )
    report = _operation(
        "A pod's proof of life", {200: ("Taken.", "AncestorVerdict")}, _REPORTING, where, body="PodReport"
    )
    return {
        "/budget/{namespace}": _get("A namespace's budget", "AncestorBudget", (*_READING, 422), where),
        "/budget/{namespace}/increase": {"post": increase},
        "/budget/{namespace}/report": {"post": report},
    }


def _open_paths() -> Document:
    paths = {
        "/healthz": _get("Whether the process lives", "Health", ()),
        "/readyz": _get("Whether it can serve", "Health", (503,)),
        "/openapi.json": {
            "get": {
                "summary": "This description",
                "responses": {"200": {"description": "OpenAPI 3.1.", "content": {"application/json": {}}}},
            }
        },
    }
    for path in paths.values():
        path["get"]["security"] = []
    return paths


def _get(summary: str, model: str, problems: tuple[int, ...], parameters: list[Document] | None = None) -> Document:
    return {"get": _operation(summary, {200: ("The answer.", model)}, problems, parameters)}


def _operation(
    summary: str,
    good: Mapping[int, tuple[str, str]],
    problems: tuple[int, ...],
    parameters: list[Document] | None = None,
    body: str | None = None,
) -> Document:
    responses = {str(status): _response(text, "application/json", model) for status, (text, model) in good.items()}
    responses |= {
        str(status): _response(_STATUSES[status], "application/problem+json", "Problem") for status in problems
    }
    for status in set(_LATER) & set(problems):
        responses[str(status)]["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    operation: Document = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _reference(body)}}}
    return operation


def _response(description: str, media: str, model: str) -> Document:
    return {"description": description, "content": {media: {"schema": _reference(model)}}}


def _reference(model: str) -> Document:
    return {"$ref": f"#/components/schemas/{model}"}


def _path(name: str, description: str, schema: Document | None = None) -> Document:
    schema_of_value = schema or {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema_of_value}


def _namespace() -> Document:
    schema = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
    return _path("namespace", "A namespace.", schema)


def _query(name: str, description: str, schema: Document) -> Document:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _page() -> list[Document]:
    bounds = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    return [
        _query("cursor", "Where to go on.", {"type": "string", "maxLength": MAX_CURSOR_LENGTH}),
        _query("limit", "Items on a page.", bounds),
    ]


def _idempotency_key(*, required: bool) -> Document:
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    text = "A text that is new for each order: the same request under the same key is made once."
    return {"name": "Idempotency-Key", "in": "header", "required": required, "description": text, "schema": schema}


def _schemas() -> Document:
    reading: list[tuple[type[BaseModel], Any]] = [(model, "validation") for model in _BODIES]
    writing: list[tuple[type[BaseModel], Any]] = [(model, "serialization") for model in _ANSWERS]
    _, schemas = models_json_schema([*reading, *writing], ref_template="#/components/schemas/{model}")
    definitions: Document = schemas["$defs"]
    return definitions
