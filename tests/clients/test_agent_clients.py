"""The requests with which agents' libraries ask for calls and objects, and how they read the answers.

Requests are those that langchain-openai 1.7, llama-index-llms-openai 0.8, pydantic-ai 2.68 and litellm 1.83 send,
recorded and re-stated. Where a library is installed (`build/clients/bin/pip install langchain-openai ...`), it asks
itself, too.
"""

import json
import typing

import pydantic
import pytest

from conftest import make_client

DIALECTS = ["hermes", "qwen3_coder", "gemma4", "openai"]


class Place(pydantic.BaseModel):
    """A place."""

    name: str = pydantic.Field(max_length=12)
    kind: typing.Literal["town", "village"]
    people: int = pydantic.Field(ge=0, le=9999)
    mayor: typing.Optional[typing.Literal["a", "b"]] = None


SCHEMA = Place.model_json_schema()
CLOSED = SCHEMA | {"additionalProperties": False}
STRICT = CLOSED | {"required": list(SCHEMA["properties"])}
MESSAGES = [{"role": "user", "content": "Name a place."}]


def function(name, parameters, **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters} | fields}


def named(name):
    return {"type": "function", "function": {"name": name}}


BOOL = {"type": "object", "properties": {"response": {"type": "boolean"}}, "required": ["response"]}
CALLS = {
    "langchain function_calling": {
        "tools": [function("Place", SCHEMA)], "tool_choice": named("Place"), "parallel_tool_calls": False,
    },
    "langchain function_calling, strict": {
        "tools": [function("Place", STRICT, strict=True)], "tool_choice": named("Place"), "parallel_tool_calls": False,
    },
    "langchain tool_choice any": {"tools": [function("Place", SCHEMA)], "tool_choice": "required"},
    "llama-index structured_predict": {
        "tools": [function("Place", CLOSED, strict=False)], "tool_choice": "required", "parallel_tool_calls": False,
        "temperature": 0.1,
    },
    "pydantic-ai tool output": {"tools": [function("final_result", STRICT, strict=True)], "tool_choice": "required"},
    "pydantic-ai outputs of two types": {
        "tools": [
            function("final_result_Place", CLOSED),
            function("final_result_bool", BOOL | {"additionalProperties": False}, strict=True),
        ],
        "tool_choice": "required",
    },
    "litellm tools": {
        "tools": [function("place", SCHEMA)], "tool_choice": "required", "parallel_tool_calls": False,
    },
}  # fmt: skip
FORMATS = {
    "langchain json_schema, litellm response_format": {"schema": STRICT, "name": "Place", "strict": True},
    "pydantic-ai native output": {"schema": CLOSED, "name": "Place", "strict": False, "description": "A place."},
}


@pytest.fixture(scope="module", params=DIALECTS)
def agent_server(start, request):
    return start("--tool-call-parser", request.param)


def validate(name, arguments):
    if name.endswith("bool"):
        assert set(json.loads(arguments)) == {"response"} and isinstance(json.loads(arguments)["response"], bool)
    else:
        Place.model_validate_json(arguments)


@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
def test_calls_hold_what_was_asked_for(agent_server, fields):
    with make_client(agent_server) as client:
        ask = {"model": "toy", "messages": MESSAGES, "max_tokens": 600, "seed": 1} | fields
        [choice] = client.chat.completions.create(**ask).choices
        assert choice.message.tool_calls and choice.finish_reason in ("stop", "tool_calls", "length")
        cut = choice.finish_reason == "length"  # this model may call again and again
        assert not (cut and ask.get("parallel_tool_calls") is False)
        for call in choice.message.tool_calls[: -1 if cut else None]:
            validate(call.function.name, call.function.arguments)
        calls = {}
        for chunk in client.chat.completions.create(stream=True, **ask):
            for call in chunk.choices[0].delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = name + (call.function.name or ""), arguments + call.function.arguments
        assert list(calls.values()) == [(c.function.name, c.function.arguments) for c in choice.message.tool_calls]


@pytest.mark.parametrize("schema", FORMATS.values(), ids=FORMATS)
def test_answers_hold_their_schema_beside_tools_too(agent_server, schema):
    response_format = {"type": "json_schema", "json_schema": schema}
    with make_client(agent_server) as client:
        for tools in ({}, {"tools": [function("place", CLOSED)], "parallel_tool_calls": False}):
            [choice] = client.chat.completions.create(
                model="toy", messages=MESSAGES, max_tokens=600, seed=1, response_format=response_format, **tools
            ).choices
            for call in choice.message.tool_calls or []:
                validate(call.function.name, call.function.arguments)
            if not choice.message.tool_calls:
                Place.model_validate_json(choice.message.content)


def test_json_mode_is_an_object(agent_server):
    """langchain's json_mode and pydantic-ai's prompted output; this model says more than fits."""
    with make_client(agent_server) as client:
        [choice] = client.chat.completions.create(
            model="toy", messages=MESSAGES, max_tokens=50, response_format={"type": "json_object"}
        ).choices
        assert choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_itself(agent_server, method):
    openai = pytest.importorskip("langchain_openai")
    model = openai.ChatOpenAI(model="toy", base_url=f"{agent_server.url}/v1", api_key="none", max_tokens=600, seed=1)
    structured = model.with_structured_output(Place, method=method)
    assert isinstance(structured.invoke("Name a place."), Place)
    assert isinstance(list(structured.stream("Name a place."))[-1], Place)


def test_llama_index_itself(agent_server):
    pytest.importorskip("llama_index.core", minversion="0.14")
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.prompts import PromptTemplate

    model = like.OpenAILike(
        model="toy", api_base=f"{agent_server.url}/v1", api_key="none", is_chat_model=True,
        is_function_calling_model=True, max_tokens=600, additional_kwargs={"seed": 1},
    )  # fmt: skip
    assert isinstance(model.structured_predict(Place, PromptTemplate("Name a place.")), Place)


def test_pydantic_ai_itself(agent_server):
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("toy", provider=OpenAIProvider(base_url=f"{agent_server.url}/v1", api_key="none"))
    settings = {"max_tokens": 600, "seed": 1}
    for output_type in (Place, ai.ToolOutput(Place, strict=True), ai.NativeOutput(Place), [Place, bool]):
        output = ai.Agent(model, output_type=output_type, model_settings=settings).run_sync("Name a place.").output
        assert isinstance(output, (Place, bool))


def test_litellm_itself(agent_server):
    litellm = pytest.importorskip("litellm")
    ask = {"api_base": f"{agent_server.url}/v1", "api_key": "none", "messages": MESSAGES, "max_tokens": 600, "seed": 1}
    answer = litellm.completion(model="hosted_vllm/toy", **ask, **CALLS["litellm tools"])
    [call] = answer.choices[0].message.tool_calls
    validate(call.function.name, call.function.arguments)
    answer = litellm.completion(model="openai/toy", response_format=Place, **ask)
    Place.model_validate_json(answer.choices[0].message.content)
