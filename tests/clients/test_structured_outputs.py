import json

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    kind: str = Field(pattern="^(town|village)$")
    people: int = Field(ge=0, le=9999)


HI = [{"role": "user", "content": "Name a place."}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema()}}


def ask(client, **fields):
    return client.chat.completions.create(
        **{"model": "toy", "messages": HI, "max_tokens": 600, "seed": 1} | fields
    )


def test_parse_gives_the_callers_type(client):
    answer = client.chat.completions.parse(
        model="toy", messages=HI, response_format=Place, max_tokens=600, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Place)


def test_streams_and_outputs_are_held(client):
    stream = ask(client, response_format=FORMAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    Place.model_validate_json(text)
    for choice in ask(client, response_format=FORMAT, n=3).choices:
        Place.model_validate_json(choice.message.content)


def test_json_mode_gives_an_object(client):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=40)
    assert answer.choices[0].message.content.lstrip().startswith("{")


def test_vllms_fields_are_held(client):
    answer = ask(client, extra_body={"structured_outputs": {"choice": ["north", "south"]}})
    assert answer.choices[0].message.content in ("north", "south")
    answer = ask(client, extra_body={"guided_regex": "[0-9]{4}"})
    assert 0 <= int(answer.choices[0].message.content) <= 9999


def test_reasoning_is_free_and_the_answer_held(scripted_client):
    answer = ask(
        scripted_client,
        model="scripted",
        messages=[{"role": "user", "content": "Please ponder."}],
        response_format=FORMAT,
    )
    message = answer.choices[0].message
    assert message.reasoning == "\nTwo and two: 2 + 2 = 4.\n"
    Place.model_validate_json(message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_is_not_enforced_is_refused(client, stream):
    schema = {"type": "object", "properties": {"a": {"$ref": "http://example.com/schema"}}}
    with pytest.raises(openai.BadRequestError, match="/properties/a"):
        ask(client, stream=stream, extra_body={"guided_json": schema})


def test_other_requests_go_on_beside_a_hostile_schema(client):
    schema = {"type": "object", "properties": {f"p{i}": {"pattern": "(a|b)*c{900}"} for i in range(2000)}}
    try:
        ask(client, extra_body={"guided_json": schema}, max_tokens=5)
    except openai.BadRequestError as refused:
        assert "structured_outputs" in refused.message
    assert json.loads(ask(client, response_format=FORMAT).choices[0].message.content)
