"""What goes over the wire, read without a client's leniency, and what the official client makes of it."""

import pytest

from conftest import MODEL, SCRIPTS, is_idle, wait_until

COMPLETION = {"prompt": "The KV cache keeps", "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "What is Quire?"}], "temperature": 0}
REQUESTS = [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)]
HOT = {"temperature": 1.2, "top_p": 1, "top_k": -1, "seed": 4, "max_tokens": 12}


def new_text(choice):
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def choices_of(chunks):
    """Index -> the choice's part of each chunk."""
    parts = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    return parts


@pytest.mark.parametrize("path, request_", REQUESTS)
@pytest.mark.parametrize("extra", [{}, HOT, HOT | {"n": 3}, {"stop": [" the", "ine"]}, {"max_tokens": 1}])
def test_a_stream_says_what_the_whole_answer_says(server, path, request_, extra):
    whole = server.post(path, **request_ | extra)
    parts = choices_of(server.events(path, **request_ | extra))
    assert sorted(parts) == [choice["index"] for choice in whole["choices"]]
    for choice in whole["choices"]:
        part = parts[choice["index"]]
        assert "".join(map(new_text, part)) == text_of(choice)
        assert part[-1]["finish_reason"] == choice["finish_reason"]
        assert part[-1]["stop_reason"] == choice["stop_reason"]


@pytest.mark.parametrize("path, request_", REQUESTS)
def test_chunks_share_id_time_and_model_and_each_choice_ends_once(server, path, request_):
    chunks = server.events(path, **request_ | HOT | {"n": 3})
    for name in ("id", "created", "model", "object"):
        assert len({chunk[name] for chunk in chunks}) == 1
    assert all("usage" not in chunk and "error" not in chunk for chunk in chunks)
    for part in choices_of(chunks).values():
        assert [choice["finish_reason"] for choice in part[:-1]] == [None] * (len(part) - 1)
        assert part[-1]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("path, request_", REQUESTS)
def test_usage_comes_last_and_without_choices(server, path, request_):
    whole = server.post(path, **request_)
    *chunks, last = server.events(path, **request_, stream_options={"include_usage": True})
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("path, request_", REQUESTS)
def test_usage_can_come_with_every_chunk(server, path, request_):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.events(path, **request_, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == counts[-2] > counts[0]


@pytest.mark.parametrize("path, request_", REQUESTS)
def test_every_token_has_a_chunk(server, path, request_):
    chunks = server.events(path, **request_, max_tokens=10, ignore_eos=True, return_token_ids=True)
    ids = [choice.get("token_ids", []) for chunk in chunks for choice in chunk["choices"]]
    assert [len(some) for some in ids if some] == [1] * 10


def test_a_chat_begins_with_the_role_of_each_choice(server):
    for part in choices_of(server.events("/v1/chat/completions", **CHAT | HOT | {"n": 2})).values():
        assert part[0]["delta"] == {"role": "assistant", "content": ""}
        assert part[0]["finish_reason"] is None
        assert all("role" not in choice["delta"] for choice in part[1:])


@pytest.mark.parametrize(
    "path, request_, fields", [(*REQUESTS[0], {"logprobs": 2}), (*REQUESTS[1], {"logprobs": True, "top_logprobs": 2})]
)
def test_logprobs_of_a_stream_are_those_of_the_whole(server, path, request_, fields):
    whole = server.post(path, **request_ | fields)["choices"][0]["logprobs"]
    parts = choices_of(server.events(path, **request_ | fields))[0]
    for name in whole:
        joined = [entry for part in parts if part["logprobs"] for entry in part["logprobs"][name]]
        assert joined == whole[name]


def test_echo_comes_first_in_a_stream(server):
    whole = server.post("/v1/completions", **COMPLETION, echo=True, logprobs=1)["choices"][0]
    parts = choices_of(server.events("/v1/completions", **COMPLETION, echo=True, logprobs=1))[0]
    assert parts[0]["text"].startswith(COMPLETION["prompt"])
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [x for part in parts for x in part["logprobs"]["token_logprobs"]] == whole["logprobs"]["token_logprobs"]


def test_prompts_of_one_stream_interleave_by_index(server):
    prompts = ["The KV cache keeps", "Once there was"]
    parts = choices_of(server.events("/v1/completions", prompt=prompts, temperature=0))
    for index, prompt in enumerate(prompts):
        alone = server.post("/v1/completions", prompt=prompt, temperature=0)["choices"][0]["text"]
        assert "".join(part["text"] for part in parts[index]) == alone


def test_characters_are_never_cut(scripted):
    fields = {"messages": [{"role": "user", "content": "unicode"}], "return_token_ids": True}
    chunks = scripted.events("/v1/chat/completions", **fields)
    texts = [new_text(part) for part in choices_of(chunks)[0]]
    assert "".join(texts) == SCRIPTS["unicode"]
    assert all("\ufffd" not in text for text in texts)
    assert any(text == "" for text in texts[1:-1]), "no token ended inside a character: the test tests nothing"


def test_a_stop_string_over_several_tokens_is_never_shown(scripted):
    fields = {"messages": [{"role": "user", "content": "count"}], "stop": ["STOP here"], "max_tokens": 30}
    texts = [new_text(part) for part in choices_of(scripted.events("/v1/chat/completions", **fields))[0]]
    assert "".join(texts) == "one, two, "
    assert len([text for text in texts if text]) > 2


def test_request_ids_are_echoed_or_made(server):
    headers = {"Content-Type": "application/json", "X-Request-Id": "client-1.x"}
    for body in (b'{"prompt":"a","max_tokens":1}', b'{"prompt":"a","max_tokens":1,"stream":true}', b"{"):
        assert server.request("POST", "/v1/completions", body, headers)[1]["X-Request-Id"] == "client-1.x"
    assert len(server.request("GET", "/v1/models")[1]["X-Request-Id"]) >= 16
    odd = server.request("GET", "/v1/models", headers={"X-Request-Id": "a b\tc"})[1]["X-Request-Id"]
    assert odd and " " not in odd


def test_an_error_before_the_first_token_is_an_http_error(server):
    answer = server.post("/v1/completions", expect=400, prompt="a", stream=True, max_tokens=99999)
    assert answer["error"]["code"] == 400 and "context_length_exceeded" in answer["error"]["message"]


def test_the_client_streams_completions_and_chats(client):
    fields = dict(model=MODEL, temperature=0, max_tokens=12)
    whole = client.completions.create(prompt=COMPLETION["prompt"], **fields)
    stream = client.completions.create(
        prompt=COMPLETION["prompt"], stream=True, stream_options={"include_usage": True}, **fields
    )
    chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 12 and chunks[-1].choices == []

    fields = dict(model=MODEL, messages=CHAT["messages"], temperature=0)
    with client.chat.completions.stream(**fields) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**fields)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert "content.delta" in events


def test_a_stream_that_is_left_frees_its_blocks(server, client):
    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT["messages"], stream=True, max_tokens=1900, extra_body={"ignore_eos": True}
    )
    for _, chunk in zip(range(5), stream):
        assert chunk.choices
    assert server.metrics()["vllm:num_requests_running"] == 1
    generated = server.metrics()["vllm:generation_tokens_total"]
    stream.close()
    wait_until(lambda: is_idle(server))
    assert server.metrics()["vllm:generation_tokens_total"] < generated + 1000
