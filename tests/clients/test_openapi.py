"""/openapi.json against the server: that it is a document, and that what it says is so."""

import json

import openapi_spec_validator
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

# Answers that are never a 5xx, and have a status, a type and a body that are documented.
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]
EXAMPLES = 40  # of an operation, right and wrong ones
NOT_HERE = {"/classify", "/window", "/window/state"}  # for which this model has no labels, and nobody asked


@pytest.fixture(scope="module")
def short(start):
    """Whose longest answers are soon there."""
    return start("--max-model-len", 64, "--max-num-seqs", 8, "--max-n", 4)


@pytest.fixture(scope="module")
def document(short):
    return short.get("/openapi.json")


def operations(document):
    return [(path, method) for path, item in document["paths"].items() for method in item]


def test_it_is_a_document_of_its_version(document):
    openapi_spec_validator.validate(document)
    assert document["openapi"] == "3.1.0" and len(operations(document)) >= 33


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_answers_are_as_it_says(short, document, mode):
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=short.url)
    statuses = {}
    for path, method in operations(document):
        if mode.is_negative and "requestBody" not in document["paths"][path][method]:
            continue  # nothing of it can be wrong

        @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            answer = case.call(base_url=short.url)
            statuses.setdefault(path, set()).add(answer.status_code)
            case.validate_response(answer, checks=CHECKS)

        ask()
    if mode.is_positive:  # what is right, it says, is right: of each route some was
        answered = {path: seen for path, seen in statuses.items() if "{" not in path and path not in NOT_HERE}
        assert all(200 in seen for seen in answered.values()), statuses
    else:
        assert all(seen & {400, 404, 415} for seen in statuses.values()), statuses
    assert short.get("/health") == {"status": "ok"}


def test_streams_have_the_type_that_it_says(short, document):
    answers = document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True})
    _, headers, _ = short.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert headers["Content-Type"].split(";")[0] in answers
