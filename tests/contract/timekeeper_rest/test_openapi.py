"""Random requests against every operation of the OpenAPI description, as a person who may all and as a running pod."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from tests.contract.timekeeper_rest.conftest import RUNNING
from tests.support.waiting import LIMIT_S
from timekeeper.api import openapi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.rest_server import RestServer

EXAMPLES = 60 if os.environ.get("CI") == "true" else 10
OF_PODS = ("/v1/reports", "/budget/{namespace}/report")
TOO_LONG = (413, 414)
"""The statuses with which the server refuses a request before anything reads it."""
CHECKS: list[Any] = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.missing_required_header,
    checks.unsupported_method,
    checks.allow_header_conformance,
]
BODY_CHECKS: list[Any] = [*CHECKS, checks.negative_data_rejection]
"""The checks of requests with a body. A wrong parameter may serialise to nothing: such a request is right as sent."""

description = schemathesis.openapi.from_dict(openapi.document())


@pytest.fixture(scope="module")
def tokens(rest: RestServer) -> dict[str, str]:
    return {
        "person": rest.signer.person("admin"),
        "pod": rest.signer.pod(RUNNING.namespace, RUNNING.name, RUNNING.uid),
    }


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """A thousand handshakes would cost more than what is asked over them."""
    with requests.Session() as session:
        session.headers.clear()  # each case brings its own
        yield session


@description.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_description_names(
    case: schemathesis.Case, rest: RestServer, tokens: dict[str, str], session: requests.Session
) -> None:
    if case.query and isinstance(case.query.get("wait"), int | float) and case.query["wait"] > 0:
        case.query = {**case.query, "wait": 0}
    headers = {"Authorization": f"Bearer {tokens['pod' if case.path in OF_PODS else 'person']}"}
    response = case.call(base_url=rest.url, session=session, headers=headers, verify=str(rest.ca_file), timeout=LIMIT_S)
    if response.status_code not in TOO_LONG:
        case.validate_response(response, checks=BODY_CHECKS if case.method == "POST" else CHECKS)
