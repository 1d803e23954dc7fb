import openai
import pytest

from conftest import MODEL, make_client, KEY


def test_models_are_listed_with_their_length(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].object == "model"
    assert models[0].owned_by == "quire"
    assert models[0].max_model_len == 2048
    assert isinstance(models[0].created, int) and models[0].created > 1.7e9


def test_a_model_is_found_by_its_name(client):
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such")
    assert caught.value.code == "404" and "model_not_found" in caught.value.message


def test_each_served_name_is_a_model_and_answers_carry_the_one_asked_for(locked):
    with make_client(locked, api_key=KEY) as client:
        assert [model.id for model in client.models.list()] == ["first", "second"]
        for name in ("first", "second"):
            assert client.completions.create(model=name, prompt="a", max_tokens=1).model == name
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model=MODEL, prompt="a")
        assert (caught.value.code, caught.value.param) == ("404", "model")


def test_tokenize_and_detokenize_undo_each_other(server):
    text = "The KV cache, naïvely: 日本 <|im_end|>"
    tokens = server.post("/tokenize", prompt=text, return_token_strs=True)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 2048
    assert tokens["token_strs"][-1] == "<|im_end|>"
    assert server.post("/detokenize", tokens=tokens["tokens"])["prompt"] == text


def test_tokenize_counts_what_a_chat_will_have(server, client):
    messages = [{"role": "user", "content": "What is Quire?"}]
    count = server.post("/tokenize", messages=messages)["count"]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).usage.prompt_tokens == count
