import base64
import math
import struct

import openai
import pytest

from conftest import MODEL, make_client

TEXTS = ["What is a KV cache?", "Once there was a fox.", "What is a KV cache?"]


def embed(client, text, **fields):
    return client.embeddings.create(model=MODEL, input=text, **fields)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


def test_an_embedding_is_a_unit_vector(client):
    answer = embed(client, TEXTS[0])  # the client asks for base64 by itself
    assert answer.object == "list" and answer.model == MODEL
    [entry] = answer.data
    assert entry.object == "embedding" and entry.index == 0
    assert len(entry.embedding) == 256 and all(isinstance(value, float) for value in entry.embedding)
    assert math.sqrt(cosine(entry.embedding, entry.embedding)) == pytest.approx(1, abs=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_base64_holds_the_floats(client, server):
    floats = embed(client, TEXTS[0], encoding_format="float").data[0].embedding
    assert embed(client, TEXTS[0]).data[0].embedding == pytest.approx(floats, abs=1e-7)
    raw = server.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64")["data"][0]["embedding"]
    assert list(struct.unpack("<256f", base64.b64decode(raw))) == pytest.approx(floats, abs=1e-7)
    plain = server.post("/v1/embeddings", input=TEXTS[0])["data"][0]["embedding"]
    assert plain == pytest.approx(floats, abs=1e-7)


def test_a_list_comes_back_in_its_order(client):
    answer = embed(client, TEXTS)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    vectors = [entry.embedding for entry in answer.data]
    assert vectors[0] == vectors[2]
    assert vectors[1] == embed(client, TEXTS[1]).data[0].embedding
    assert cosine(vectors[0], vectors[1]) < 0.99
    assert answer.usage.prompt_tokens == sum(embed(client, text).usage.prompt_tokens for text in TEXTS)


def test_token_ids_are_inputs_too(client, server):
    ids = server.post("/tokenize", prompt=TEXTS[0])["tokens"]
    vector = embed(client, TEXTS[0]).data[0].embedding
    assert embed(client, ids).data[0].embedding == vector
    assert [entry.embedding for entry in embed(client, [ids, ids]).data] == [vector, vector]


def test_a_thousand_documents_are_one_request(client, server):
    """As LangChain's `embed_documents` sends them: lists of token ids, a thousand at a time."""
    ids = server.post("/tokenize", prompt=TEXTS[0])["tokens"]
    documents = [ids[: 1 + i % len(ids)] + [300 + i] for i in range(1000)]
    answer = embed(client, documents)
    assert [entry.index for entry in answer.data] == list(range(1000))
    assert answer.usage.prompt_tokens == sum(map(len, documents))
    for i in (0, 1, 500, 999):
        assert answer.data[i].embedding == embed(client, documents[i]).data[0].embedding


@pytest.mark.parametrize(
    "fields, param",
    [({"input": ""}, "input"), ({"input": []}, "input"), ({"input": "a", "dimensions": 8}, "dimensions"),
     ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": [5000]}, "input[0]")],
)  # fmt: skip
def test_what_is_wrong_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, **fields)
    assert caught.value.param == param


def test_an_input_beyond_the_context_is_refused_or_cut(client):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(client, "word " * 3000)
    assert caught.value.code == "400" and "context_length_exceeded" in caught.value.message
    assert embed(client, "word " * 3000, extra_body={"truncate_prompt_tokens": 100}).usage.prompt_tokens == 100


def test_the_mean_of_a_token_is_the_token(client, start):
    with make_client(start("--pooling-type", "mean")) as of_means:
        assert embed(of_means, [7]).data[0].embedding == embed(client, [7]).data[0].embedding
        mean, last = embed(of_means, TEXTS[0]).data[0].embedding, embed(client, TEXTS[0]).data[0].embedding
    assert cosine(mean, mean) == pytest.approx(1, abs=1e-5)
    assert cosine(mean, last) < 0.99
