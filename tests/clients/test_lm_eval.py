"""The requests of lm-evaluation-harness's `local-completions`, and how it reads the answers.

Rules of its OpenAI completions model: log-likelihood requests send token ids of context and continuation with
echo and one log-probability a token; the answer's arrays are cut [context length : -1], and a continuation counts as
greedy where each token's log-probability equals the largest of its map, as floats.
"""

import asyncio

import aiohttp
import pytest

from conftest import MODEL

REQUESTS = [
    ("The KV cache keeps", " the smallest set of most"),
    ("Question: what is 7 plus 5?\nAnswer:", " 12"),
    ("Once there was", " nothing at all"),
    ("a", " b c d e f"),
]
HEADERS = {"Authorization": "Bearer ", "Content-Type": "application/json"}  # without OPENAI_API_KEY


@pytest.fixture(scope="module")
def encoded(server):
    """Ids of context and continuation, and the length of the context."""

    def encode(context, continuation):
        ids = server.post("/tokenize", prompt=context)["tokens"]
        return ids + server.post("/tokenize", prompt=continuation)["tokens"], len(ids)

    return [encode(*request) for request in REQUESTS]


def loglikelihood_payload(prompts):
    return {
        "model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip


def parse_logprobs(outputs, context_lengths):
    results = []
    for choice, context_length in zip(sorted(outputs["choices"], key=lambda choice: choice["index"]), context_lengths):
        logprobs = choice["logprobs"]["token_logprobs"][context_length:-1]
        tops = choice["logprobs"]["top_logprobs"][context_length:-1]
        results.append((sum(logprobs), all(one == max(top.values()) for one, top in zip(logprobs, tops))))
    return results


def test_log_likelihoods_are_those_of_prompt_logprobs(server, encoded):
    answer = server.post("/v1/completions", headers=HEADERS, **loglikelihood_payload([ids for ids, _ in encoded]))
    assert len(answer["choices"]) == len(encoded)
    for choice, (ids, _) in zip(answer["choices"], encoded):
        logprobs = choice["logprobs"]
        assert {len(logprobs[name]) for name in logprobs} == {len(ids) + 1}
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert all(len(top) >= 1 for top in logprobs["top_logprobs"][1:])
    parsed = parse_logprobs(answer, [length for _, length in encoded])
    for (ids, context_length), (logprob, is_greedy) in zip(encoded, parsed):
        fields = {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 1}
        positions = server.post("/v1/completions", **fields)["choices"][0]["prompt_logprobs"]
        entries = [position[str(id)] for id, position in zip(ids, positions) if position][context_length - 1 :]
        assert logprob == sum(entry["logprob"] for entry in entries)
        assert is_greedy == all(entry["rank"] == 1 for entry in entries)
    assert {is_greedy for _, is_greedy in parsed} == {True, False}, "one of each, or the test shows little"


def test_a_batch_scores_as_each_alone_and_again(server, encoded):
    def score(requests):
        payload = loglikelihood_payload([ids for ids, _ in requests])
        return parse_logprobs(server.post("/v1/completions", headers=HEADERS, **payload), [n for _, n in requests])

    batch = score(encoded)
    assert batch == [score([request])[0] for request in encoded] == score(encoded)


def test_batches_of_32_score_as_each_alone(server, encoded):
    requests = (encoded * 8)[:32]
    payload = loglikelihood_payload([ids for ids, _ in requests])
    answer = server.post("/v1/completions", headers=HEADERS, **payload)
    assert [choice["index"] for choice in answer["choices"]] == list(range(32))
    scores = parse_logprobs(answer, [length for _, length in requests])
    assert scores == scores[: len(encoded)] * 8
    [alone] = parse_logprobs(
        server.post("/v1/completions", headers=HEADERS, **loglikelihood_payload([encoded[0][0]])), [encoded[0][1]]
    )
    assert scores[0] == alone


def test_concurrent_requests_score_the_same(server, encoded):
    async def score_all():
        async with aiohttp.ClientSession() as session:

            async def score(ids, context_length):
                url = f"{server.url}/v1/completions"
                async with session.post(url, json=loglikelihood_payload([ids]), headers=HEADERS) as response:
                    assert response.status == 200
                    return parse_logprobs(await response.json(), [context_length])[0]

            return await asyncio.gather(*(score(*request) for request in encoded * 8))

    scores = asyncio.run(score_all())
    assert scores == scores[: len(encoded)] * 8


def test_generate_until_stops_there(server):
    prompts = ["Question: what is 7 plus 5?\nAnswer:", "Once there was"]
    ids = [server.post("/tokenize", prompt=prompt)["tokens"] for prompt in prompts]
    payload = {"model": MODEL, "prompt": ids, "max_tokens": 32, "temperature": 0, "stop": ["\n", "."], "seed": 1234}
    answer = server.post("/v1/completions", headers=HEADERS, **payload)
    texts = [choice["text"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
    assert len(texts) == 2 and all(texts)
    assert not any(stop in text for text in texts for stop in payload["stop"])
    whole = server.post("/v1/completions", **payload | {"stop": None})["choices"]
    assert [choice["text"].startswith(text) for choice, text in zip(whole, texts)] == [True, True]


def test_the_chat_variant_generates_too(server):
    messages = [{"role": "user", "content": "what is 7 plus 5?"}]
    payload = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 32,
        "temperature": 0,
        "stop": ["zz"] * 4,
        "seed": 1234,
    }
    answer = server.post("/v1/chat/completions", headers=HEADERS, **payload)
    assert "12" in answer["choices"][0]["message"]["content"]
