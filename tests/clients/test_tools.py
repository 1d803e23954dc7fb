import json

import pytest

from conftest import SCRIPTS
from quire_server import parse_events


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


TOOLS = [tool("get_weather", city={"type": "string"}), tool("get_time")]
CALLS = {
    "weather": [("get_weather", {"city": "Zürich", "days": 3})],
    "both": [("get_time", {}), ("get_weather", {"city": 'Łódź "old"', "units": ["C", 1.5]})],
}


@pytest.fixture(scope="module")
def ask(scripted_client):
    def ask(word, **fields):
        messages = [{"role": "user", "content": f"A {word}, please."}]
        return scripted_client.chat.completions.create(
            **{"model": "scripted", "messages": messages, "tools": TOOLS} | fields
        )

    return ask


def read(calls):
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("word, content", [("weather", None), ("both", "Let me see.\n")])
def test_calls_are_read_from_the_text(ask, word, content):
    answer = ask(word)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == content
    assert read(choice.message.tool_calls) == CALLS[word]
    assert {call.type for call in choice.message.tool_calls} == {"function"}
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids) and all(id.startswith("call_") for id in ids)


@pytest.mark.parametrize("word, content", [("weather", ""), ("both", "Let me see.\n")])
def test_a_stream_tells_a_call_by_its_head_and_then_pieces(ask, word, content):
    chunks = [chunk for chunk in ask(word, stream=True) if chunk.choices]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]
    calls = []
    for part in [call for delta in deltas for call in delta.tool_calls or []]:
        if part.index == len(calls):
            assert part.id and part.type == "function" and part.function.name and part.function.arguments == ""
            calls.append([part.function.name, "", 0])
        else:
            assert part.index == len(calls) - 1, "a call went on after the next one had begun"
            assert part.id is None and part.function.name is None
            calls[-1][1] += part.function.arguments
            calls[-1][2] += 1
    assert [(name, json.loads(arguments)) for name, arguments, _ in calls] == CALLS[word]
    assert calls[-1][2] > 3, "the arguments came in one piece"


def test_a_stream_has_the_same_arguments_as_the_whole_answer(ask):
    whole = ask("both").choices[0].message.tool_calls
    pieces = {}
    for chunk in ask("both", stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            pieces[call.index] = pieces.get(call.index, "") + call.function.arguments
    assert [pieces[i] for i in range(2)] == [call.function.arguments for call in whole]


def test_the_clients_stream_helper_puts_calls_together(scripted_client):
    with scripted_client.chat.completions.stream(
        model="scripted", messages=[{"role": "user", "content": "both"}], tools=TOOLS
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [(event.name, json.loads(event.arguments)) for event in done] == CALLS["both"]
    assert read(final.choices[0].message.tool_calls) == CALLS["both"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_is_all_without_parallel_calls(ask, stream):
    answer = ask("both", parallel_tool_calls=False, stream=stream)
    if stream:
        names = [call.function.name for c in answer for call in c.choices[0].delta.tool_calls or [] if call.id]
        assert names == ["get_time"]
    else:
        assert read(answer.choices[0].message.tool_calls) == CALLS["both"][:1]
        assert answer.choices[0].finish_reason == "tool_calls"


def test_each_choice_has_calls_of_its_own(ask):
    answer = ask("weather", n=2, temperature=1)
    assert [read(choice.message.tool_calls) for choice in answer.choices] == [CALLS["weather"]] * 2
    assert answer.choices[0].message.tool_calls[0].id != answer.choices[1].message.tool_calls[0].id


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}])
def test_without_tools_the_text_is_left_alone(ask, fields):
    choice = ask("weather", **fields).choices[0]
    assert choice.message.content == SCRIPTS["weather"]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"


def test_a_call_that_is_cut_off_has_finish_reason_length(ask):
    choice = ask("weather", max_tokens=15).choices[0]
    assert choice.finish_reason == "length"
    assert ask("weather", tool_choice="auto").choices[0].finish_reason == "tool_calls"


ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
FORCED = [{"type": "function", "function": {"name": name, "parameters": ZONE}} for name in ("get_time", "get_date")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_would_answer_calls_where_it_has_to(ask, stream):
    answer = ask("ponder", tools=FORCED, tool_choice="required", parallel_tool_calls=False, stream=stream)
    if stream:
        deltas = [chunk.choices[0].delta for chunk in answer if chunk.choices]
        calls = [call.function for delta in deltas for call in delta.tool_calls or []]
        name, arguments = calls[0].name, "".join(call.arguments for call in calls)
        reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        [choice] = answer.choices
        [call] = choice.message.tool_calls
        name, arguments, reasoning = call.function.name, call.function.arguments, choice.message.reasoning
        content = choice.message.content or ""
        assert choice.finish_reason == "tool_calls"
    assert reasoning == "\nTwo and two: 2 + 2 = 4.\n", "it is free"
    assert name in ("get_time", "get_date") and json.loads(arguments)["zone"] in ("UTC", "CET")
    assert content == ""


def test_the_call_is_the_one_that_is_named(ask):
    named = {"type": "function", "function": {"name": "get_date"}}
    for choice in ask("unicode", tools=FORCED, tool_choice=named, n=2, temperature=1, seed=1).choices:
        names = [call.function.name for call in choice.message.tool_calls]
        assert names == ["get_date"]


def test_strict_tools_leave_what_is_right_as_it_is(ask):
    strict = tool("get_weather", city={"type": "string"}, days={"type": "integer", "maximum": 3})
    strict["function"]["strict"] = True
    answer = ask("weather", tools=[strict]).choices[0]
    assert read(answer.message.tool_calls) == CALLS["weather"]
    assert ask("unicode", tools=[strict]).choices[0].message.content == SCRIPTS["unicode"]
    strict["function"]["parameters"]["properties"]["days"]["maximum"] = 2
    calls = ask("weather", tools=[strict]).choices[0].message.tool_calls
    assert calls and all(json.loads(call.function.arguments).get("days", 0) <= 2 for call in calls)


def test_what_cannot_be_forced_is_refused_by_name(scripted):
    messages = [{"role": "user", "content": "weather"}]
    for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
        error = scripted.post("/v1/chat/completions", 400, messages=messages, tool_choice=choice)["error"]
        assert error["param"] == "tool_choice" and "tool" in error["message"]
    choice = {"type": "function", "function": {"name": "fly"}}
    error = scripted.post("/v1/chat/completions", 400, messages=messages, tools=TOOLS, tool_choice=choice)["error"]
    assert error["param"] == "tool_choice" and '"fly"' in error["message"]


def test_results_go_back_and_the_model_answers(scripted_client):
    messages = [{"role": "user", "content": "weather"}]
    answer = scripted_client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    [call] = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    followed = scripted_client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
    assert followed.choices[0].message.content == SCRIPTS["tool_result"]
    assert followed.choices[0].finish_reason == "stop"


def test_arguments_reach_the_template_as_an_object(scripted):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [2]}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tokens = scripted.post("/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    text = scripted.post("/detokenize", tokens=tokens)["prompt"]
    assert '"arguments": {"b": 1, "a": [2]}' in text, "in the order in which they came"


def test_the_wire_has_no_null_where_a_client_would_trip(scripted):
    body = json.dumps({"messages": [{"role": "user", "content": "both"}], "tools": TOOLS, "stream": True})
    _, _, raw = scripted.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    for chunk in parse_events(raw):
        for call in chunk["choices"][0]["delta"].get("tool_calls", []):
            assert isinstance(call["index"], int) and isinstance(call["function"]["arguments"], str)
            assert None not in call.values()


def test_a_thought_may_come_before_a_call(ask):
    choice = ask("plan").choices[0]
    assert choice.message.reasoning == "I should ask."
    assert read(choice.message.tool_calls) == [("get_time", {"zone": "UTC"})]
    assert choice.finish_reason == "tool_calls"
