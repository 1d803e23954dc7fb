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
    assert answer.usage.completion_tokens == 0


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
    [({"input": ""}, "input"), ({"input": []}, "input"), ({"input": "a", "dimensions": 257}, "dimensions"),
     ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": [5000]}, "input[0]"),
     ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
     ({"input": "a", "encoding_format": "float", "extra_body": {"embed_dtype": "float16"}}, "embed_dtype"),
     ({"input": "a", "extra_body": {"truncate_prompt_tokens": 9000}}, "truncate_prompt_tokens")],
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


def test_dimensions_are_the_first_ones_scaled(client):
    whole, some = embed(client, TEXTS[0]).data[0].embedding, embed(client, TEXTS[0], dimensions=16).data[0].embedding
    length = math.sqrt(cosine(whole[:16], whole[:16]))
    assert some == pytest.approx([value / length for value in whole[:16]], abs=1e-6)
    raw = embed(client, TEXTS[0], extra_body={"use_activation": False}).data[0].embedding
    assert cosine(raw, raw) > 2
    assert [value / math.sqrt(cosine(raw, raw)) for value in raw] == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("dtype, code", [("float32", "f"), ("float16", "e")])
@pytest.mark.parametrize("endianness, order", [("little", "<"), ("big", ">"), ("native", "=")])
def test_base64_has_the_type_and_order_that_is_asked_for(server, client, dtype, code, endianness, order):
    fields = {"encoding_format": "base64", "embed_dtype": dtype, "endianness": endianness}
    raw = server.post("/v1/embeddings", input=TEXTS[0], **fields)["data"][0]["embedding"]
    values = struct.unpack(f"{order}256{code}", base64.b64decode(raw))
    assert values == pytest.approx(embed(client, TEXTS[0]).data[0].embedding, abs=1e-7 if code == "f" else 1e-3)


def test_messages_are_embedded_as_their_template_spells_them(server):
    messages = [{"role": "user", "content": TEXTS[0]}]
    chat = server.post("/v1/embeddings", messages=messages)
    tokens = server.post("/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    assert chat["data"] == server.post("/v1/embeddings", input=tokens)["data"]
    assert chat["usage"]["prompt_tokens"] == len(tokens)


def test_either_side_is_cut(server):
    ids = server.post("/tokenize", prompt=TEXTS[0])["tokens"]
    for side, kept in (("left", ids[-3:]), ("right", ids[:3])):
        cut = server.post("/v1/embeddings", input=TEXTS[0], truncate_prompt_tokens=3, truncation_side=side)
        assert cut["data"] == server.post("/v1/embeddings", input=kept)["data"]


def test_pooling_answers_in_a_form_of_its_own(server):
    answer = server.post("/pooling", input=TEXTS, task="embed")
    assert answer["id"].startswith("pool-") and answer["object"] == "list"
    vectors = server.post("/v1/embeddings", input=TEXTS)["data"]
    assert answer["data"] == [
        {"index": i, "object": "pooling", "data": vectors[i]["embedding"]} for i in range(len(TEXTS))
    ]
    assert server.post("/pooling", 400, input="a", task="token_embed")["error"]["param"] == "task"


def test_langchains_embeddings(server, client):
    openai_of_langchain = pytest.importorskip("langchain_openai")
    embeddings = openai_of_langchain.OpenAIEmbeddings(
        model=MODEL, base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False, dimensions=32
    )
    vectors = embeddings.embed_documents(TEXTS)
    assert vectors[0] == embeddings.embed_query(TEXTS[0])
    assert vectors[1] == pytest.approx(embed(client, TEXTS[1], dimensions=32).data[0].embedding, abs=1e-7)
