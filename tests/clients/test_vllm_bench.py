"""The requests of `vllm bench serve`, and how it reads the answers (its endpoint_request_func.py, re-stated).

Chunks of the body are split at two line feeds; what is left of a part goes to the next one. Each event loses "data: "
and is JSON, or [DONE]. The first event with choices is the time to first token, later ones are inter-token latencies;
usage is read from an event whose choices are empty.
"""

import asyncio
import json
import time

import aiohttp
import pytest

from conftest import MODEL

OUTPUT_LEN = 24
PROMPT = "The KV cache keeps keys and values. " * 5


def completions_payload():
    return {
        "model": MODEL, "prompt": PROMPT, "repetition_penalty": 1.0, "max_tokens": OUTPUT_LEN, "logprobs": None,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


def chat_payload():
    content = [{"type": "text", "text": PROMPT}]
    return {
        "model": MODEL, "messages": [{"role": "user", "content": content}], "max_completion_tokens": OUTPUT_LEN,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


class Measurement:
    def __init__(self):
        self.text = ""
        self.ttft = None
        self.itl = []
        self.output_tokens = None
        self.prompt_tokens = None
        self.done = False


async def measure(session, url, payload):
    measured, begin = Measurement(), time.perf_counter()
    last, rest = begin, ""
    headers = {"Authorization": "Bearer none", "x-request-id": "bench-0"}
    async with session.post(url, json=payload, headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        async for part in response.content.iter_any():
            *events, rest = (rest + part.decode()).split("\n\n")
            for event in events:
                assert event.startswith("data: ")
                event = event.removeprefix("data: ")
                if event == "[DONE]":
                    measured.done = True
                    continue
                data = json.loads(event)
                if choices := data.get("choices"):
                    now = time.perf_counter()
                    if measured.ttft is None:
                        measured.ttft = now - begin
                    else:
                        measured.itl.append(now - last)
                    last = now
                    measured.text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
                elif usage := data.get("usage"):
                    measured.output_tokens = usage["completion_tokens"]
                    measured.prompt_tokens = usage["prompt_tokens"]
    assert rest == ""
    return measured


CASES = [("/v1/completions", completions_payload), ("/v1/chat/completions", chat_payload)]


@pytest.mark.parametrize("path, payload", CASES)
def test_the_benchmark_reads_what_it_needs(server, path, payload):
    async def run():
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{server.url}/v1/models") as response:
                models = await response.json()
            assert models["data"][0]["id"] == models["data"][0]["root"] == MODEL
            first = await measure(session, server.url + path, payload())
            return [first, *await asyncio.gather(*(measure(session, server.url + path, payload()) for _ in range(32)))]

    for measured in asyncio.run(run()):
        assert measured.done and measured.text
        assert measured.output_tokens == OUTPUT_LEN
        assert measured.prompt_tokens > 20
        assert 0 < measured.ttft < 60
        # One for each further token; a chat's role has an event of its own.
        assert len(measured.itl) in (OUTPUT_LEN - 1, OUTPUT_LEN)


def test_metrics_carry_the_names_that_dashboards_query(server):
    server.post("/v1/completions", prompt="a", max_tokens=3, ignore_eos=True)
    metrics = server.metrics()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                 "generation_tokens_total", "request_success_total", "num_preemptions_total",
                 "prefix_cache_queries_total", "prefix_cache_hits_total", "cache_config_info"):  # fmt: skip
        assert f"vllm:{name}" in metrics
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                 "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total"):  # fmt: skip
        assert metrics[f"vllm:{name}_count"] > 0
        assert metrics[f"vllm:{name}_bucket"] >= metrics[f"vllm:{name}_count"]
    assert metrics["vllm:request_success_total"] > 0


def test_metrics_count_what_was_asked_for(server):
    before = server.metrics()
    server.post("/v1/completions", prompt=[5, 6, 7], n=2, temperature=1, max_tokens=5, ignore_eos=True)
    after = server.metrics()

    def grown(name):
        return after[f"vllm:{name}"] - before[f"vllm:{name}"]

    assert grown("generation_tokens_total") == 10
    assert grown("prompt_tokens_total") == 3
    assert grown("request_success_total") == 2
    assert grown("request_params_n_count") == 1 and grown("request_params_n_sum") == 2
