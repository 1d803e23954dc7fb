import concurrent.futures
import json
import os
import subprocess
import sys
import time

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


def test_langchain_and_pydantic_ai_read_objects(server):
    from langchain_openai import ChatOpenAI
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    url = f"{server.url}/v1"
    chat = ChatOpenAI(model="toy", base_url=url, api_key="none", max_tokens=600, seed=1)
    assert isinstance(chat.with_structured_output(Place, method="json_schema").invoke("Name a place."), Place)
    model = OpenAIChatModel("toy", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, output_type=NativeOutput(Place), model_settings={"max_tokens": 600, "seed": 1})
    assert isinstance(agent.run_sync("Name a place.").output, Place)


def test_litellm_and_llm_ask_for_a_schema(server, tmp_path):
    import litellm

    url = f"{server.url}/v1"
    answer = litellm.completion(
        model="openai/toy", api_base=url, api_key="none", messages=HI, max_tokens=600, seed=1, response_format=Place
    )
    Place.model_validate_json(answer.choices[0].message.content)
    models = [{"model_id": "toy", "model_name": "toy", "api_base": url, "supports_schema": True}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    said = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "toy", "--schema", json.dumps(FORMAT["json_schema"]["schema"]), "--key", "x"]
        + ["-o", "max_tokens", "600", "-o", "seed", "1", "Name a place."],
        env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    Place.model_validate_json(said.stdout)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_is_not_enforced_is_refused(client, stream):
    schema = {"type": "object", "properties": {"a": {"$ref": "http://example.com/schema"}}}
    with pytest.raises(openai.BadRequestError, match="/properties/a"):
        ask(client, stream=stream, extra_body={"guided_json": schema})


def test_other_requests_go_on_beside_hostile_sources(client):
    hostile = [
        {"guided_json": {"type": "object", "properties": {f"p{i}": {"pattern": f"(a|b)*c{{9{i}}}"} for i in range(2000)}}},
        {"guided_json": {"enum": [f"choice {i}" for i in range(60000)]}},
        {"guided_regex": "(a|b)*a(a|b){300}"},
        {"guided_regex": "(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"},
        {"guided_grammar": "root ::= " + "(" * 20000 + '"a"' + ")" * 20000},
    ]

    def ask_hostile(fields):
        try:
            return ask(client, extra_body=fields, max_tokens=20).choices[0].finish_reason
        except openai.APIStatusError as refused:
            return refused.message

    with concurrent.futures.ThreadPoolExecutor(2 * len(hostile)) as pool:
        answers = [pool.submit(ask_hostile, fields) for fields in hostile * 2]
        plain = [ask(client, max_tokens=16).usage.completion_tokens for _ in range(10)]
        while not all(answer.done() for answer in answers):
            begin = time.monotonic()
            Place.model_validate_json(ask(client, response_format=FORMAT).choices[0].message.content)
            assert time.monotonic() - begin < 20
    assert len(plain) == 10
    for answer in answers:
        assert answer.result() in ("length", "stop") or "guided_" in answer.result()
    Place.model_validate_json(ask(client, response_format=FORMAT).choices[0].message.content)
