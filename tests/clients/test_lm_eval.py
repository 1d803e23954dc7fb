"""lm-evaluation-harness over a served model: the harness itself, by tasks of our own, and its requests at scale.

Rules of its `local-completions`: log-likelihood requests send token ids of context and continuation with echo and one
log-probability a token; the answer's arrays are cut [context length : -1], and a continuation counts as greedy where
each token's log-probability equals the largest of its map, as floats.
"""

import asyncio
import json
import os
import subprocess
import sys

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


def position_logprobs(server, ids):
    """Log-probability and rank of each id but the first, by another field of the API than the harness reads."""
    fields = {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 1}
    positions = server.post("/v1/completions", **fields)["choices"][0]["prompt_logprobs"]
    return [position[str(id)] for id, position in zip(ids, positions) if position]


TASKS = {
    "multiple_choice": {
        "doc_to_text": "{{text}}",
        "doc_to_choice": ["{{right}}", "{{wrong}}"],
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc"}],
    },
    "generate_until": {
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{right}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 20},
        "metric_list": [{"metric": "exact_match"}],
    },
    "loglikelihood_rolling": {
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


@pytest.fixture(scope="module")
def samples(server, tmp_path_factory):
    """What the harness says of three tasks: by name a list of documents, each with its requests and answers."""
    folder = tmp_path_factory.mktemp("lm_eval")
    data = folder / "data.jsonl"
    lines = [{"text": text, "right": end, "wrong": " zebras and bananas"} for text, end in REQUESTS[:2]]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    for name, fields in TASKS.items():
        task = {"task": name, "output_type": name} | files | fields
        (folder / f"{name}.yaml").write_text(json.dumps(task))
    arguments = f"model={MODEL},base_url={server.url}/v1/completions,tokenizer_backend=remote,num_concurrent=4"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
    command += ["--include_path", folder, "--tasks", ",".join(TASKS), "--output_path", folder, "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    run = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    logs = {name: next(folder.glob(f"{MODEL}/samples_{name}_*")).read_text().splitlines() for name in TASKS}
    assert {name: len(lines) for name, lines in logs.items()} == dict.fromkeys(TASKS, 2)
    return {name: [json.loads(line) for line in lines] for name, lines in logs.items()}


def test_the_harness_scores_choices_as_prompt_logprobs_do(server, samples):
    for sample in samples["multiple_choice"]:
        scores = []
        for request, ((logprob, is_greedy),) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            context, whole = (
                server.post("/tokenize", prompt=text)["tokens"]
                for text in (request["arg_0"], request["arg_0"] + request["arg_1"])
            )
            entries = position_logprobs(server, whole)[len(context) - 1 :]
            assert float(logprob) == pytest.approx(sum(entry["logprob"] for entry in entries), rel=1e-6)
            assert is_greedy == str(all(entry["rank"] == 1 for entry in entries))
            scores.append(float(logprob))
        assert sample["acc"] == float(scores[0] > scores[1])
    assert [sample["acc"] for sample in samples["multiple_choice"]] == [1.0, 1.0]


def test_the_harness_scores_whole_texts_as_prompt_logprobs_do(server, samples):
    info = server.get("/tokenizer_info")
    [begin] = server.post("/tokenize", prompt=info["eos_token"], add_special_tokens=False)["tokens"]
    for sample in samples["loglikelihood_rolling"]:
        [[logprob]] = sample["resps"]
        ids = server.post("/tokenize", prompt=sample["doc"]["text"])["tokens"]
        entries = position_logprobs(server, [begin, *ids])
        assert float(logprob) == pytest.approx(sum(entry["logprob"] for entry in entries), rel=1e-6)


def test_the_harness_gets_the_greedy_text_up_to_its_stop(server, samples):
    for sample in samples["generate_until"]:
        fields = {"prompt": sample["arguments"]["gen_args_0"]["arg_0"], "max_tokens": 20, "temperature": 0}
        whole = server.post("/v1/completions", **fields)["choices"][0]["text"]
        assert sample["resps"] == [[whole.split(".")[0]]]


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
        entries = position_logprobs(server, ids)[context_length - 1 :]
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
