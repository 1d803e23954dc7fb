"""/v1/responses: the official client, those built upon it, and Codex's requests."""

import asyncio
import json

import openai
import pydantic
import pytest
from openai.types import responses as types

from conftest import SCRIPTS, make_client

WEATHER = {"city": "Zürich", "days": 3}
TOOLS = [
    {"type": "function", "name": name, "description": f"{name}.", "strict": False,
     "parameters": {"type": "object", "properties": properties}}
    for name, properties in {"get_weather": {"city": {"type": "string"}}, "get_time": {}}.items()
]  # fmt: skip
EVENTS = pydantic.TypeAdapter(types.ResponseStreamEvent)
SHAPE = {
    "message": ["response.content_part.added", "response.output_text.delta", "response.output_text.done",
                "response.content_part.done"],
    "reasoning": ["response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                  "response.content_part.done"],
    "function_call": ["response.function_call_arguments.delta", "response.function_call_arguments.done"],
}  # fmt: skip


@pytest.fixture(scope="module")
def client(scripted_client):
    return scripted_client


def ask(client, word, **fields):
    return client.responses.create(**{"model": "scripted", "input": f"A {word}, please."} | fields)


def strict(model, value):
    """The typed object, where the client itself would take anything."""
    return model.model_validate(value.to_dict() if hasattr(value, "to_dict") else value)


def post(server, expect=200, **fields):
    return server.post("/v1/responses", expect, **{"model": "scripted"} | fields)


def raw_events(server, path="/v1/responses", **fields):
    """Names and data of a stream's events; checks its framing."""
    body = json.dumps(fields | {"stream": True})
    status, headers, body = server.request("POST", path, body, {"Content-Type": "application/json"})
    assert status == 200, body
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = body.decode().split("\n\n")
    assert events.pop() == ""
    made = []
    for event in events:
        name, data = event.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
    return made


def types_of(output):
    return [item.type for item in output]


@pytest.mark.parametrize(
    "word, kinds, text",
    [
        ("unicode", ["message"], SCRIPTS["unicode"]),
        ("ponder", ["reasoning", "message"], "The answer is four."),
        ("weather", ["function_call"], ""),
        ("both", ["message", "function_call", "function_call"], "Let me see.\n"),
        ("plan", ["reasoning", "function_call"], ""),
    ],
)
def test_whole_and_streamed_answers_are_the_same_items(client, scripted, word, kinds, text):
    whole = strict(types.Response, ask(client, word, tools=TOOLS))
    assert whole.status == "completed" and types_of(whole.output) == kinds and whole.output_text.strip() == text.strip()
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert (whole.usage.output_tokens_details.reasoning_tokens > 0) == ("reasoning" in kinds)
    events = raw_events(scripted, model="scripted", input=f"A {word}, please.", tools=TOOLS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENTS.validate_python(event)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = strict(types.Response, events[-1]["response"])
    assert events[-1]["type"] == "response.completed" and types_of(last.output) == kinds
    check_items(events[2:-1], [item.to_dict() for item in last.output])
    for streamed, other in zip(last.output, whole.output):
        assert streamed.id != other.id
        same = {"id", "call_id"}
        assert {k: v for k, v in streamed if k not in same} == {k: v for k, v in other if k not in same}


def check_items(events, output):
    """The events between the first two and the last: item by item, whose deltas joined are the item."""
    for index, item in enumerate(output):
        assert events[0]["type"] == "response.output_item.added" and events[0]["item"]["id"] == item["id"]
        assert events[0]["item"]["status"] == "in_progress"
        end = next(i for i, event in enumerate(events) if event["type"] == "response.output_item.done")
        assert events[end]["item"] == item
        assert all(event["output_index"] == index for event in events[: end + 1])
        inner, events = events[1:end], events[end + 1 :]
        assert all(event["item_id"] == item["id"] for event in inner)
        assert list(dict.fromkeys(event["type"] for event in inner)) == SHAPE[item["type"]]
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(event.get("delta", "") for event in inner) == whole
    assert events == []


@pytest.mark.parametrize("word", ["unicode", "ponder", "both", "plan"])
def test_the_clients_own_stream_puts_it_together(client, word):
    with client.responses.stream(model="scripted", input=word, tools=TOOLS) as stream:
        seen = [event for event in stream]
        final = stream.get_final_response()
    assert seen[-1].type == "response.completed"
    whole = ask(client, word, tools=TOOLS)
    assert final.output_text == whole.output_text and types_of(final.output) == types_of(whole.output)
    calls = [[(item.name, json.loads(item.arguments)) for item in made.output if item.type == "function_call"]
             for made in (final, whole)]  # fmt: skip
    assert calls[0] == calls[1] and len(calls[0]) == {"both": 2, "plan": 1}.get(word, 0)


def test_an_answer_says_what_was_asked(client):
    fields = {
        "instructions": "Be brief.", "max_output_tokens": 99, "temperature": 0.6, "top_p": 0.9, "tools": TOOLS,
        "metadata": {"a": "b"}, "user": "me", "safety_identifier": "x", "prompt_cache_key": "k", "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"},
        "tool_choice": "auto", "parallel_tool_calls": True, "top_logprobs": 2, "service_tier": "auto",
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    answer = strict(types.Response, ask(client, "unicode", **fields)).to_dict()
    assert answer["id"].startswith("resp_") and answer["object"] == "response"
    assert answer["service_tier"] == "default" and answer["background"] is False and answer["error"] is None
    for name in set(fields) - {"service_tier", "include"}:
        assert answer[name] == fields[name], name


def test_length_makes_an_answer_incomplete(client, scripted):
    answer = ask(client, "count", max_output_tokens=5)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 5
    assert raw_events(scripted, model="scripted", input="count", max_output_tokens=5)[-1]["type"] == "response.incomplete"
    cut = ask(client, "weather", tools=TOOLS, max_output_tokens=20)
    assert cut.output[-1].status == "incomplete"
    # The broken call is no part of what follows.
    assert ask(client, "unicode", previous_response_id=cut.id).output_text == SCRIPTS["unicode"]


def test_logprobs_cover_the_text(client, scripted):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [item] = ask(client, "unicode", **fields).output
    logprobs = item.content[0].logprobs
    assert bytes(byte for token in logprobs for byte in token.bytes).decode().startswith(SCRIPTS["unicode"])
    assert all(len(token.top_logprobs) == 2 for token in logprobs)
    events = raw_events(scripted, model="scripted", input="unicode", **fields)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert [token for event in deltas for token in event["logprobs"]] == done["logprobs"]
    assert len(done["logprobs"]) == len(logprobs)
    assert ask(client, "unicode").output[0].content[0].logprobs == []


def test_calls_and_their_outputs_make_a_conversation(client):
    first = ask(client, "weather", tools=TOOLS)
    [call] = first.output
    assert json.loads(call.arguments) == WEATHER and call.call_id.startswith("call_")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = ask(client, "", input=[result], previous_response_id=first.id, tools=TOOLS)
    assert second.output_text == SCRIPTS["tool_result"] and second.previous_response_id == first.id
    # The same without a store: the client sends all items back.
    items = [{"role": "user", "content": "A weather, please."}, call.to_dict(), result]
    parts = [*items[:-1], result | {"output": [{"type": "input_text", "text": "sunny"}]}]
    for given in (items, parts):
        again = ask(client, "", input=given, tools=TOOLS, store=False)
        assert again.output_text == SCRIPTS["tool_result"]
        assert again.usage.input_tokens == second.usage.input_tokens
        assert again.usage.input_tokens_details.cached_tokens > 0


def test_turns_hit_the_prefix_cache(client):
    text = "Of this there is much. " * 20
    first = ask(client, "", input=f"{text} unicode", instructions="Be brief.")
    second = ask(client, "unicode", previous_response_id=first.id, instructions="Be brief.")
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0.9 * first.usage.input_tokens
    # Earlier instructions do not go on.
    third = ask(client, "unicode", previous_response_id=second.id)
    assert third.usage.input_tokens_details.cached_tokens < 32


def test_what_is_stored_can_be_read_and_deleted(client, scripted):
    first = ask(client, "ponder", instructions="Be brief.")
    streamed = list(ask(client, "unicode", previous_response_id=first.id, stream=True))[-1].response
    got = strict(types.Response, client.responses.retrieve(streamed.id))
    assert got.to_dict() == streamed.to_dict() and got.output_text == SCRIPTS["unicode"]
    page = client.responses.input_items.list(streamed.id, order="asc")
    assert [item.type for item in page.data] == ["message", "reasoning", "message", "message"]
    assert page.data[0].content[0].text == "A ponder, please." and page.data[1].id == first.output[0].id
    ids = [item.id for item in page.data]
    assert len(set(ids)) == 4
    assert [item.id for item in client.responses.input_items.list(streamed.id, limit=3)] == ids[::-1]
    part = client.responses.input_items.list(streamed.id, order="asc", after=ids[0], limit=2)
    assert [item.id for item in part.data] == ids[1:3] and part.has_more
    reference = ask(client, "", input=[{"type": "item_reference", "id": ids[3]}])
    assert reference.output_text == SCRIPTS["unicode"]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(streamed.id)
    client.responses.delete(streamed.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(streamed.id)
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "unicode", previous_response_id=streamed.id)
    assert "previous_response_not_found" in str(caught.value) and caught.value.param == "previous_response_id"
    assert client.responses.retrieve(first.id).id == first.id


def test_without_a_store_nothing_is_kept(client, start):
    answer = ask(client, "unicode", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with make_client(start("--response-store-size", "0")) as other:
        answer = other.responses.create(model="toy", input="a", max_output_tokens=2)
        assert answer.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(answer.id)


def test_a_key_sees_its_own_answers_alone(start):
    server = start("--api-key", "one", "--api-key", "two")
    with make_client(server, api_key="one") as one, make_client(server, api_key="two") as two:
        answer = one.responses.create(model="toy", input="a", max_output_tokens=2)
        for call in (two.responses.retrieve, two.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(answer.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="toy", input="b", previous_response_id=answer.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="toy", input=[{"type": "item_reference", "id": answer.output[0].id}])
        assert one.responses.retrieve(answer.id).id == answer.id


class Place(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=9999)


def test_parse_gives_objects(server):
    with make_client(server) as client:
        made = client.responses.parse(
            model="toy", input="Name a place.", text_format=Place, max_output_tokens=300, extra_body={"seed": 1}
        )
        assert isinstance(made.output_parsed, Place)
        mode = {"format": {"type": "json_object"}}
        text = client.responses.create(model="toy", input="a", text=mode, max_output_tokens=20).output_text
        assert text.lstrip().startswith("{")


def test_tools_that_have_to_be_called_are(start):
    schema = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
    tools = [{"type": "function", "name": name, "parameters": schema} for name in ("get_time", "get_date")]
    named = {"type": "function", "name": "get_date"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    with make_client(start("--tool-call-parser", "hermes")) as client:
        for choice, names in (("required", {"get_time", "get_date"}), (named, {"get_date"}), (allowed, {"get_date"})):
            made = client.responses.create(
                model="toy", input="a", tools=tools, tool_choice=choice, parallel_tool_calls=False,
                max_output_tokens=200, extra_body={"seed": 1},
            )  # fmt: skip
            assert made.to_dict()["tool_choice"] == choice
            [call] = made.output
            assert call.name in names and json.loads(call.arguments)["zone"] in ("UTC", "CET")


@pytest.mark.parametrize(
    "fields, param, says",
    [
        ({"background": True}, "background", "not supported"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"max_tool_calls": 3}, "max_tool_calls", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "tools[0].name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice", "none of the tools"),
        ({"include": ["file_search_call.results"]}, "include[0]", "file_search_call"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort is"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "missing"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "text.format of type"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "17 pairs"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "input[0].content is 3"),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
         "input[0].content[0].type", "takes text alone"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
         "input[0].arguments", "input[0].arguments"),
        ({"input": []}, "input", "input is empty"),
        ({"input": "x" * 60000}, "", "maximum context length"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_said_in_the_apis_words(scripted, stream, fields, param, says):
    error = post(scripted, 400, **{"input": "a", "stream": stream} | fields)["error"]
    assert (error["param"] or "") == param and says in error["message"] and "\n" not in error["message"]


# What Codex sends: as its source's ResponsesApiRequest has it.
CODEX = {
    "model": "scripted", "instructions": "You are a coding agent.", "tools": TOOLS, "tool_choice": "auto",
    "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "text": {"verbosity": "low"},
}  # fmt: skip


def message(role, *texts):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def test_codex_turns(scripted):
    items = [message("developer", "<permissions>"), message("user", "<environment_context>"), message("user", "plan")]
    events = raw_events(scripted, **CODEX, input=items)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "function_call"]
    completed = events[-1]
    assert completed["type"] == "response.completed" and completed["response"]["usage"]["total_tokens"] > 0
    # It sends items back without their ids and statuses.
    assert done[0]["content"] == [{"type": "reasoning_text", "text": "I should ask."}]
    reasoning = {"type": "reasoning", "summary": [], "content": done[0]["content"], "encrypted_content": None}
    call = {name: done[1][name] for name in ("type", "name", "arguments", "call_id")}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12:00"}
    events = raw_events(scripted, **CODEX, input=[*items, reasoning, call, output])
    [item] = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == SCRIPTS["tool_result"]
    assert events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_two_clients_at_once(scripted):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none") as client:
            words = ["unicode", "ponder"] * 8
            answers = await asyncio.gather(*(client.responses.create(model="scripted", input=word) for word in words))
            follow = await asyncio.gather(
                *(client.responses.create(model="scripted", input="unicode", previous_response_id=a.id) for a in answers)
            )
            for word, answer, next_one in zip(words, answers, follow):
                assert answer.output_text.strip() == SCRIPTS[word].split("</think>")[-1].strip()
                assert next_one.previous_response_id == answer.id
                items = await client.responses.input_items.list(next_one.id, order="asc")
                assert items.data[0].content[0].text == word
            assert len({answer.id for answer in answers}) == len(words)

    asyncio.run(run())


def test_langchain_itself(scripted):
    chat = pytest.importorskip("langchain_openai")
    fields = {"model": "scripted", "base_url": f"{scripted.url}/v1", "api_key": "none", "use_responses_api": True}
    model = chat.ChatOpenAI(**fields)
    assert model.invoke("unicode").text == SCRIPTS["unicode"]
    assert "".join(chunk.text for chunk in model.stream("unicode")) == SCRIPTS["unicode"]
    bound = model.bind_tools([{"type": "function", "function": {"name": "get_weather", "parameters": {}}}])
    answer = bound.invoke("weather")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", WEATHER)]
    tool = {"role": "tool", "content": "sunny", "tool_call_id": answer.tool_calls[0]["id"]}
    assert bound.invoke([("user", "weather"), answer, tool]).text == SCRIPTS["tool_result"]
    by_id = chat.ChatOpenAI(**fields, use_previous_response_id=True)
    first = by_id.invoke("ponder")
    assert by_id.invoke([("user", "ponder"), first, ("user", "unicode")]).text == SCRIPTS["unicode"]


def test_litellm_itself(scripted):
    litellm = pytest.importorskip("litellm")
    fields = {"model": "openai/scripted", "api_base": f"{scripted.url}/v1", "api_key": "none"}
    assert litellm.responses(input="unicode", **fields).output[0].content[0].text == SCRIPTS["unicode"]
    events = list(litellm.responses(input="unicode", stream=True, **fields))
    assert events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == SCRIPTS["unicode"]


def test_pydantic_ai_itself(scripted, server):
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def model(name, of):
        return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=f"{of.url}/v1", api_key="none"))

    agent = ai.Agent(model("scripted", scripted))
    asked = []

    @agent.tool_plain
    def get_weather(city: str, days: int) -> str:
        asked.append({"city": city, "days": days})
        return "sunny"

    assert agent.run_sync("The weather, please.").output == SCRIPTS["tool_result"]
    assert asked == [WEATHER]
    settings = {"max_tokens": 300, "extra_body": {"seed": 1}}
    made = ai.Agent(model("toy", server), output_type=ai.NativeOutput(Place), model_settings=settings)
    assert isinstance(made.run_sync("Name a place.").output, Place)
