"""Anthropic's Messages API with its own client, with LangChain and LiteLLM, and with the requests of Claude Code."""

import json
import typing

import anthropic
import pydantic
import pytest

from conftest import KEY, MODEL, SCRIPTS, is_idle, wait_until

TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}},
]
THOUGHT = "\nTwo and two: 2 + 2 = 4.\n"
WEATHER = {"city": "Zürich", "days": 3}


class Place(pydantic.BaseModel):
    """A place, of what the client does not take out of its schema."""

    kind: typing.Literal["town", "village"]
    by_the_sea: bool


def make_anthropic(server, **options):
    options = {"api_key": "none", "max_retries": 0, "timeout": 120} | options
    return anthropic.Anthropic(base_url=server.url, **options)


@pytest.fixture(scope="module")
def claude(scripted):
    with make_anthropic(scripted) as client:
        yield client


@pytest.fixture(scope="module")
def toy(server):
    with make_anthropic(server) as client:
        yield client


def user(text):
    return [{"role": "user", "content": text}]


def asked(word, **fields):
    return {"model": "scripted", "max_tokens": 300, "messages": user(f"A {word}, please."), "tools": TOOLS} | fields


def without_ids(message):
    """What two answers to one request have in common: not ids, nor what the second found in the cache."""
    content = [block.to_dict() | {"id": None, "signature": None} for block in message.content]
    return content, message.stop_reason, message.stop_sequence, message.usage.output_tokens


def test_an_answer_has_what_its_type_says(claude):
    message = claude.messages.create(**asked("unicode"))
    assert message.id.startswith("msg_") and message._request_id == message.id.removeprefix("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "scripted")
    [block] = message.content
    assert block.type == "text" and block.text == SCRIPTS["unicode"]
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    usage = message.usage
    assert usage.input_tokens > 0 and usage.output_tokens > 5 and usage.cache_creation_input_tokens == 0


def test_what_stood_in_the_cache_is_counted_by_itself(claude):
    ask = asked("unicode", system="Long enough. " * 40)
    first, again = (claude.messages.create(**ask).usage for _ in range(2))
    assert again.cache_read_input_tokens > first.cache_read_input_tokens
    totals = {usage.input_tokens + usage.cache_read_input_tokens for usage in (first, again)}
    assert totals == {claude.messages.count_tokens(**{k: v for k, v in ask.items() if k != "max_tokens"}).input_tokens}


@pytest.mark.parametrize("word", ["weather", "both", "ponder", "plan", "unicode"])
def test_a_stream_becomes_the_whole_answer(claude, word):
    with claude.messages.stream(**asked(word)) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_message()
    assert without_ids(final) == without_ids(claude.messages.create(**asked(word)))
    assert types[0] == "message_start" and types[-1] == "message_stop"


def test_events_come_in_their_order_and_have_names(scripted):
    body = json.dumps(asked("plan", stream=True))
    _, headers, raw = scripted.request("POST", "/v1/messages?beta=true", body, {"Content-Type": "application/json"})
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = [part.split(b"\n") for part in raw.split(b"\n\n")]
    assert events.pop() == [b""], "there is no [DONE]"
    read = [json.loads(data.removeprefix(b"data: ")) for _, data in events]
    assert [name.removeprefix(b"event: ").decode() for name, _ in events] == [event["type"] for event in read]
    spelled = [
        "+" + event["content_block"]["type"] if event["type"] == "content_block_start"
        else event["delta"]["type"] if event["type"] == "content_block_delta" else event["type"] for event in read
    ]  # fmt: skip
    once = [kind for i, kind in enumerate(spelled) if i == 0 or spelled[i - 1] != kind]
    assert once == [
        "message_start", "+thinking", "thinking_delta", "signature_delta", "content_block_stop", "+tool_use",
        "input_json_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert spelled.count("input_json_delta") > 3, "arguments come as they are written"


def test_a_free_model_calls_and_reads_the_result(claude):
    ask = asked("both")
    first = claude.messages.create(**ask)
    text, time, weather = first.content
    assert text.text == "Let me see.\n" and first.stop_reason == "tool_use"
    assert (time.name, time.input) == ("get_time", {})
    assert (weather.name, weather.input) == ("get_weather", {"city": 'Łódź "old"', "units": ["C", 1.5]})
    results = [
        {"type": "tool_result", "tool_use_id": time.id, "content": "It is late.", "is_error": False},
        {"type": "tool_result", "tool_use_id": weather.id, "content": [{"type": "text", "text": "Sun."}]},
    ]
    history = [*ask["messages"], first.to_param(), {"role": "user", "content": results}]
    second = claude.messages.create(**ask | {"messages": history})
    assert second.content[0].text == SCRIPTS["tool_result"] and second.stop_reason == "end_turn"


@pytest.mark.parametrize("choice, names", [
    ({"type": "any", "disable_parallel_tool_use": True}, {"get_weather", "get_time"}),
    ({"type": "tool", "name": "get_time"}, {"get_time"}),
])  # fmt: skip
def test_a_model_that_would_answer_calls_where_it_has_to(claude, choice, names):
    zone = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
    tools = [{"name": name, "input_schema": zone} for name in ("get_weather", "get_time")]
    message = claude.messages.create(**asked("ponder", tools=tools, tool_choice=choice))
    thought, call = message.content
    assert thought.thinking == THOUGHT, "it is free"
    assert call.type == "tool_use" and call.name in names and call.input["zone"] in ("UTC", "CET")
    assert message.stop_reason == "tool_use"


def test_without_a_choice_of_tools_the_text_is_left_alone(claude):
    message = claude.messages.create(**asked("weather", tool_choice={"type": "none"}))
    assert message.content[0].text == SCRIPTS["weather"]


def test_thinking_is_a_block_with_a_signature(claude):
    message = claude.messages.create(**asked("ponder", thinking={"type": "adaptive"}))
    thought, text = message.content
    assert thought.thinking == THOUGHT and thought.signature
    assert text.text == "\n\nThe answer is four."
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
    history = [*user("ponder"), message.to_param(), *user("unicode")]
    assert claude.messages.create(**asked("", messages=history)).content[0].text == SCRIPTS["unicode"]


def test_a_budget_ends_the_thinking(claude):
    message = claude.messages.create(**asked("ponder", thinking={"type": "enabled", "budget_tokens": 4}))
    assert THOUGHT.startswith(message.content[0].thinking) and message.content[0].thinking != THOUGHT


def test_thinking_may_be_omitted(claude):
    thinking = {"type": "adaptive", "display": "omitted"}
    thought, text = claude.messages.create(**asked("ponder", thinking=thinking)).content
    assert (thought.type, thought.thinking) == ("thinking", "") and thought.signature
    assert text.text == "\n\nThe answer is four."


def test_the_reason_of_the_end_is_told(claude):
    stopped = claude.messages.create(**asked("count", stop_sequences=["never", "STOP"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    assert stopped.content[0].text == "one, two, "
    assert claude.messages.create(**asked("count", max_tokens=5)).stop_reason == "max_tokens"


def test_a_call_that_is_cut_off_is_kept_as_it_is(claude):
    message = claude.messages.create(**asked("weather", max_tokens=30))
    [call] = message.content
    assert message.stop_reason == "max_tokens"
    assert call.input["INVALID_JSON"].startswith('{"city"')
    with claude.messages.stream(**asked("weather", max_tokens=30)) as stream:
        assert stream.get_final_message().content[0].input.keys() <= WEATHER.keys()


def test_the_last_message_is_continued(claude, scripted):
    history = [*user("x"), {"role": "assistant", "content": "It is <|unicode|>"}]
    count = claude.messages.count_tokens(model="scripted", messages=history).input_tokens
    tokens = scripted.post("/tokenize", messages=history, continue_final_message=True)["tokens"]
    assert count == len(tokens)
    assert claude.messages.create(**asked("", messages=history, max_tokens=2)).usage.output_tokens == 2


def test_counts_are_those_of_the_prompt(toy):
    ask = {"model": MODEL, "system": [{"type": "text", "text": "Be brief."}], "messages": user("How are you?")}
    count = toy.messages.count_tokens(**ask).input_tokens
    usage = toy.messages.create(max_tokens=1, **ask).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens
    assert toy.messages.count_tokens(**ask | {"messages": user("How are you? Fine?")}).input_tokens > count


def test_a_format_is_held_to(toy):
    message = toy.messages.parse(
        model=MODEL, max_tokens=600, messages=user("Name a place."), output_format=Place, extra_body={"seed": 1}
    )
    assert isinstance(message.parsed_output, Place)


@pytest.mark.parametrize("fields, place", [
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"temperature": -1}}, "temperature"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": user([{"type": "image", "source": {"type": "url", "url": "x"}}])}, "messages[0].content[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"extra_body": {"mcp_servers": [{"type": "url"}]}}, "mcp_servers"),
    ({"extra_body": {"n": 2}}, "n "),
    ({"max_tokens": 100_000}, "input length and `max_tokens` exceed context limit"),
    ({"messages": user("word " * 5000)}, "prompt is too long"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_named(toy, fields, place, stream):
    with pytest.raises(anthropic.BadRequestError) as caught:
        toy.messages.create(**{"model": MODEL, "max_tokens": 2, "messages": user("a"), "stream": stream} | fields)
    assert caught.value.type == "invalid_request_error" and caught.value.request_id
    assert caught.value.api_message.startswith(place)


def test_errors_have_their_classes(toy, locked):
    ask = {"max_tokens": 1, "messages": user("a")}
    with pytest.raises(anthropic.NotFoundError) as caught:
        toy.messages.create(model="another", **ask)
    assert caught.value.type == "not_found_error"
    with make_anthropic(locked, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model="first", **ask)
    assert caught.value.type == "authentication_error"
    for options in ({"api_key": KEY}, {"api_key": None, "auth_token": KEY}):
        with make_anthropic(locked, **options) as client:
            assert client.messages.create(model="second", **ask).model == "second"


def test_a_client_that_leaves_takes_its_request_with_it(toy, server):
    ask = {"model": MODEL, "max_tokens": 1500, "messages": user("a"), "extra_body": {"ignore_eos": True}}
    with toy.messages.stream(**ask) as stream:
        next(iter(stream))
        assert not is_idle(server)
    wait_until(lambda: is_idle(server))


def agents_request(**fields):
    """As Claude Code 2.1.330 asks, in our words."""
    tools = [
        {
            "name": f"Tool{i}",
            "description": "One of many.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Where."}, "all": {"type": "boolean"}},
                "required": ["path"],
                "additionalProperties": False,
            },
            "eager_input_streaming": True,
        }
        for i in range(2)
    ]
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tools.append({"name": "Placeholder", "input_schema": {"type": "object"}, "defer_loading": True})
    return {
        "model": "scripted", "max_tokens": 300, "temperature": 1, "stream": True, "tools": TOOLS + tools,
        "metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: version=1; cch=0;"},
            {"type": "text", "text": "You write code."} | cached,
            {"type": "text", "text": "You have tools."} | cached,
        ],
        "thinking": {"type": "adaptive", "display": "updates"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": None},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Today.</system-reminder>"},
                                         {"type": "text", "text": "Do both."} | cached]},
        ],
    } | fields  # fmt: skip


def test_claude_codes_requests_work_over_two_turns(scripted):
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b",
               "x-app": "cli"}  # fmt: skip
    ask = agents_request()
    status, _, raw = scripted.request("POST", "/v1/messages?beta=true", json.dumps(ask), headers)
    assert status == 200, raw
    events = [json.loads(part.split(b"\n")[1].removeprefix(b"data: ")) for part in raw.split(b"\n\n")[:-1]]
    inputs = {}
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            inputs[event["index"]] = [event["content_block"], ""]
        if event["type"] == "content_block_delta" and event["index"] in inputs:
            inputs[event["index"]][1] += event["delta"]["partial_json"]
    calls = [block | {"input": json.loads(text)} for block, text in inputs.values()]
    assert [call["name"] for call in calls] == ["get_time", "get_weather"]
    [last] = [event for event in events if event["type"] == "message_delta"]
    assert last["delta"]["stop_reason"] == "tool_use" and last["usage"]["output_tokens"] > 20
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "Done."} for call in calls]
    history = [
        *ask["messages"],
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}, *calls]},
        {"role": "user", "content": results},
        {"role": "system", "content": "There are agents."},
    ]
    ask = agents_request(messages=history, stream=False)
    answer = scripted.post("/v1/messages?beta=true", headers=headers, **ask)
    assert answer["content"] == [{"type": "text", "text": SCRIPTS["tool_result"]}]
    del ask["max_tokens"]
    count = scripted.post("/v1/messages/count_tokens?beta=true", headers=headers, **ask)
    usage = answer["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_what_changes_in_each_of_its_requests_does_not_spoil_the_cache(scripted):
    usages = []
    for nonce in range(2):
        ask = agents_request(stream=False)
        ask["system"][0]["text"] += f" cch={nonce};"
        usages.append(scripted.post("/v1/messages", **ask)["usage"])
    assert usages[1]["cache_read_input_tokens"] > 10 * usages[1]["input_tokens"]


def test_a_tool_that_it_loads_does_not_spoil_the_cache(scripted):
    ask = agents_request(stream=False)
    call = {"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {"query": "Late"}}
    references = [{"type": "tool_reference", "tool_name": "Late"}]
    result = {"type": "tool_result", "tool_use_id": "c", "content": references}
    ask["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    before = scripted.post("/v1/messages", **ask)["usage"]
    ask["tools"].insert(0, {"name": "Late", "input_schema": {"type": "object"}, "defer_loading": True})
    after = scripted.post("/v1/messages", **ask)["usage"]
    assert after["cache_read_input_tokens"] > 8 * after["input_tokens"]
    total = {usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in (before, after)}
    assert max(total) - min(total) == len('<function>{"name":"","parameters":{"type":"object"}}</function>')


def test_the_beta_client_too(claude):
    message = claude.beta.messages.create(
        **asked("weather"), betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )  # fmt: skip
    assert message.content[0].input == WEATHER


def test_langchain_itself(scripted, start):
    from langchain_anthropic import ChatAnthropic

    options = {"api_key": "none", "max_tokens": 600, "max_retries": 0}
    model = ChatAnthropic(model="scripted", base_url=scripted.url, **options).bind_tools(TOOLS)
    answer = model.invoke("weather")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", WEATHER)]
    whole = None
    for chunk in model.stream("weather"):
        whole = chunk if whole is None else whole + chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", WEATHER)]
    assert answer.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    server = start("--tool-call-parser", "hermes")
    toy = ChatAnthropic(model=MODEL, base_url=server.url, model_kwargs={"extra_body": {"seed": 1}}, **options)
    assert isinstance(toy.with_structured_output(Place).invoke("Name a place."), Place)


def test_litellm_itself(scripted):
    import litellm

    ask = {"model": "anthropic/scripted", "api_base": scripted.url, "api_key": "none", "max_tokens": 300,
           "messages": user("weather")}  # fmt: skip
    functions = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}} for tool in TOOLS
    ]
    [call] = litellm.completion(**ask, tools=functions).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == WEATHER
    arguments = ""
    for chunk in litellm.completion(**ask, tools=functions, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            arguments += call.function.arguments or ""
    assert json.loads(arguments) == WEATHER
