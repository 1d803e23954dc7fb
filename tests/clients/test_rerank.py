"""/score, /rerank and /classify: of plain HTTP, and as LiteLLM's rerank calls them."""

import json
import math

import pytest

from conftest import MODEL, is_idle, wait_until

OVERRIDES = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["No", "Yes"],
    "is_original_qwen3_reranker": True,
}
QUERY = "What is a cat?"
DOCUMENTS = ["zzz", "A cat is an animal.", "Paris is big."]
# What Qwen3-Reranker was trained on.
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n'
    "<Query>: {}\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture(scope="module")
def reranker(start):
    return start("--dtype", "float32", "--hf-overrides", json.dumps(OVERRIDES))


def expected_share(server, instruction, document):
    """p(Yes) / (p(Yes) + p(No)) of what completions of the same prompt report: those of the only token allowed."""
    prompt = PROMPT.format(instruction, QUERY, document)
    logprobs = []
    for label in OVERRIDES["classifier_from_token"]:
        ids = server.post("/tokenize", prompt=label)["tokens"]
        fields = {"allowed_token_ids": ids, "max_tokens": 1, "temperature": 0, "logprobs": 0}
        choice = server.post("/v1/completions", prompt=prompt, **fields)["choices"][0]
        logprobs += choice["logprobs"]["token_logprobs"]
    return 1 / (1 + math.exp(logprobs[0] - logprobs[1]))


@pytest.mark.parametrize("instruction", [None, "Judge."])
def test_a_score_is_the_share_of_yes(reranker, instruction):
    fields = {} if instruction is None else {"instruction": instruction}
    answer = reranker.post("/v1/score", model=MODEL, text_1=QUERY, text_2=DOCUMENTS, **fields)
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    for entry, document in zip(answer["data"], DOCUMENTS):
        assert entry["object"] == "score"
        assert entry["score"] == pytest.approx(expected_share(reranker, instruction or INSTRUCTION, document), abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_rerank_is_sorted(reranker, path):
    answer = reranker.post(path, model=MODEL, query=QUERY, documents=DOCUMENTS)
    scores = [entry["score"] for entry in reranker.post("/score", queries=QUERY, documents=DOCUMENTS)["data"]]
    order = sorted(range(3), key=lambda i: -scores[i])
    assert [result["index"] for result in answer["results"]] == order
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx([scores[i] for i in order])
    assert [result["document"]["text"] for result in answer["results"]] == [DOCUMENTS[i] for i in order]
    assert answer["id"].startswith("rerank-") and answer["model"] == MODEL
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 300


def test_special_tokens_of_a_document_are_text(reranker):
    plain = reranker.post("/rerank", query=QUERY, documents=["<|im_end|>"])["usage"]["prompt_tokens"]
    assert plain > reranker.post("/rerank", query=QUERY, documents=[" "])["usage"]["prompt_tokens"] + 1


def test_a_classifier_says_what_each_label_has(reranker):
    answer = reranker.post("/classify", input=["hi", "the end"])
    assert [entry["label"] for entry in answer["data"]] == ["No", "Yes"]
    for entry in answer["data"]:
        assert entry["num_classes"] == 2 and sum(entry["probs"]) == pytest.approx(1)
    assert answer["usage"]["completion_tokens"] == 0


def test_cosines_are_of_embeddings(server):
    answer = server.post("/rerank", query="zzz", documents=DOCUMENTS, top_n=1, return_documents=False)
    assert answer["results"] == [{"index": 0, "relevance_score": pytest.approx(1, abs=1e-5)}]
    vectors = [entry["embedding"] for entry in server.post("/v1/embeddings", input=[QUERY, *DOCUMENTS])["data"]]
    scores = [entry["score"] for entry in server.post("/score", data_1=QUERY, data_2=DOCUMENTS)["data"]]
    assert scores == pytest.approx([sum(a * b for a, b in zip(vectors[0], other)) for other in vectors[1:]], abs=1e-2)


@pytest.mark.parametrize(
    "path, fields, param",
    [("/rerank", {"documents": ["a"]}, "query"), ("/rerank", {"query": "q", "documents": []}, "documents"),
     ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
     ("/score", {"text_1": "a", "text_2": "word " * 3000}, "text_2"),
     ("/rerank", {"query": "q", "documents": ["a"] * 1025}, "documents"),
     ("/rerank", {"query": "q", "documents": ["a"], "instruction": "i"}, "instruction"),
     ("/rerank", {"query": "q", "documents": ["a"], "truncate_prompt_tokens": 9000}, "truncate_prompt_tokens")],
)  # fmt: skip
def test_what_is_wrong_is_named(server, path, fields, param):
    assert server.post(path, 400, **fields)["error"]["param"] == param


def test_a_model_without_labels_is_no_classifier(server):
    assert "classifier_from_token" in server.post("/classify", 400, input="a")["error"]["message"]


def test_a_client_that_leaves_ends_its_pairs(start):
    server = start("--max-num-seqs", 1, "--max-num-batched-tokens", 64)
    with pytest.raises(TimeoutError):
        body = json.dumps({"query": QUERY, "documents": [f"{i} " + "word " * 1500 for i in range(500)]})
        server.request("POST", "/rerank", body, {"Content-Type": "application/json"}, timeout=1)
    wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere"])
def test_litellms_rerank(reranker, provider):
    litellm = pytest.importorskip("litellm")
    path = {"hosted_vllm": "", "cohere": "/v2/rerank"}[provider]
    answer = litellm.rerank(
        model=f"{provider}/{MODEL}", query=QUERY, documents=DOCUMENTS, top_n=2, api_base=reranker.url + path, api_key="none"
    )
    expected = reranker.post("/rerank", query=QUERY, documents=DOCUMENTS, top_n=2)["results"]
    assert [(result["index"], result["relevance_score"]) for result in answer.results] == [
        (result["index"], pytest.approx(result["relevance_score"])) for result in expected
    ]
