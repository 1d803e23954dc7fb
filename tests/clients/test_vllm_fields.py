"""What vLLM's clients take for granted, with the typed models of the package openai and by plain HTTP."""

import langchain_openai
import litellm
import openai
import pytest

from conftest import MODEL, is_idle, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 4}


def test_fields_of_which_nothing_is_said_are_null(server, client):
    chat = client.chat.completions.create(model=MODEL, messages=HI, **GREEDY)
    for name in ("service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"):
        assert name in chat.model_dump() and getattr(chat, name) is None
    assert chat.system_fingerprint and chat.choices[0].token_ids is None
    message = server.post(CHAT, messages=HI, **GREEDY)["choices"][0]["message"]
    for name in ("refusal", "annotations", "audio", "function_call", "reasoning"):
        assert message[name] is None
    text = client.completions.create(model=MODEL, prompt="Hi", **GREEDY)
    for name in ("prompt_logprobs", "prompt_token_ids", "token_ids"):
        assert name in text.choices[0].model_dump() and getattr(text.choices[0], name) is None
    assert text.kv_transfer_params is None
    validated = type(text).model_validate(text.model_dump(), strict=False)
    assert validated.choices[0].text == text.choices[0].text


def test_chunks_say_no_more_than_vllms(server):
    first, *others = server.events(CHAT, messages=HI, **GREEDY)
    assert first["prompt_token_ids"] is None
    for chunk in others:
        assert set(chunk) <= {"id", "object", "created", "model", "choices", "system_fingerprint"}
        assert set(chunk["choices"][0]) <= {"index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    for chunk in server.events(TEXT, prompt="Hi", **GREEDY):
        assert chunk["choices"][0]["prompt_token_ids"] is None and chunk["choices"][0]["token_ids"] is None


def test_numbers_and_flags_may_be_texts(server):
    plain = server.post(TEXT, prompt="Once", temperature=0, max_tokens=5, ignore_eos=True)
    texts = server.post(TEXT, prompt="Once", temperature="0.0", max_tokens="5", ignore_eos="yes", stream="off")
    assert texts["choices"] == plain["choices"]
    assert server.post(TEXT, 400, prompt="Once", temperature="hot")["error"]["param"] == "temperature"


def test_any_role_reaches_the_template(server):
    tokens = server.post("/tokenize", messages=[{"role": "ipython", "content": "Hi"}])["tokens"]
    assert "ipython" in server.post("/detokenize", tokens=tokens)["prompt"]


def test_a_choice_of_tools_without_tools_is_none(client):
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(model=MODEL, messages=HI, tool_choice=choice, **GREEDY)
        assert answer.choices[0].finish_reason in ("stop", "length")


def test_the_sampled_token_comes_first(client):
    answer = client.completions.create(
        model=MODEL, prompt="Once", seed=5, max_tokens=12, temperature=1.5, logprobs=2,
        extra_body={"return_tokens_as_token_ids": True})  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert [next(iter(top)) for top in logprobs.top_logprobs] == logprobs.tokens
    assert any(len(top) == 3 for top in logprobs.top_logprobs)


def test_log_probabilities_of_named_tokens(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, logprobs=True, **GREEDY,
        extra_body={"logprob_token_ids": [12, 7, 400], "return_tokens_as_token_ids": True})  # fmt: skip
    for position in answer.choices[0].logprobs.content:
        assert [top.token for top in position.top_logprobs] == ["token_id:12", "token_id:7", "token_id:400"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, extra_body={"logprob_token_ids": [1]})
    assert caught.value.param == "logprob_token_ids"


def test_the_whole_vocabulary_needs_leave(client):
    for make in (
        lambda: client.completions.create(model=MODEL, prompt="a", logprobs=-1),
        lambda: client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=-1),
        lambda: client.completions.create(model=MODEL, prompt="a", extra_body={"prompt_logprobs": -1}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            make()
        assert caught.value.param.endswith("logprobs")


def test_a_prompt_is_cut_at_the_side_that_is_named(server):
    tokens = server.post("/tokenize", prompt="one two three four")["tokens"]
    for side, kept in (("left", tokens[-2:]), ("right", tokens[:2])):
        asked = {"truncate_prompt_tokens": 2, "truncation_side": side}
        assert server.post("/tokenize", prompt="one two three four", **asked)["tokens"] == kept
        answer = server.post(TEXT, prompt="one two three four", return_token_ids=True, **asked, **GREEDY)
        assert answer["choices"][0]["prompt_token_ids"] == kept
    error = server.post(TEXT, 400, prompt="a", truncate_prompt_tokens=2045, **GREEDY)["error"]
    assert error["param"] == "truncate_prompt_tokens" and error["code"] == 400


def test_an_echo_is_what_the_output_continues(server):
    messages = HI + [{"role": "assistant", "content": "Well, "}]
    asked = {"messages": messages, "echo": True, "continue_final_message": True, **GREEDY}
    content = server.post(CHAT, **asked)["choices"][0]["message"]["content"]
    assert content.startswith("Well, ") and len(content) > len("Well, ")
    events = server.events(CHAT, **asked)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == content


def test_clients_know_an_overflow_of_the_context(server):
    base = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    with pytest.raises(langchain_openai.chat_models.base.ContextOverflowError):
        langchain_openai.ChatOpenAI(model=MODEL, max_tokens=5000, **base).invoke("Hi")
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model=f"openai/{MODEL}", messages=HI, max_tokens=5000, **base)


def test_routes_beside_the_models(server):
    assert server.request("GET", "/ping")[0] == server.request("POST", "/ping", b"{}")[0] == 200
    wait_until(lambda: is_idle(server))
    wait_until(lambda: server.get("/load")["server_load"] == 0)
    info = server.get("/tokenizer_info")
    assert isinstance(info["chat_template"], str) and info["tokenizer_class"]
    assert server.get("/v1/models")["data"][0]["permission"] == []
