"""Routes of llama.cpp's server, as its documentation has them, by plain HTTP."""

import json

import pytest

GREEDY = {"temperature": 0, "n_predict": 6, "ignore_eos": True}


def events(server, **fields):
    headers = {"Content-Type": "application/json"}
    status, headers, body = server.request("POST", "/completion", json.dumps(fields | {"stream": True}), headers)
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    pieces = body.decode().split("\n\n")
    assert pieces.pop() == "" and all(piece.startswith("data: {") for piece in pieces)  # no [DONE]
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def test_a_completion_has_the_fields_of_llama_cpp(server):
    answer = server.post("/completion", prompt="Once upon", **GREEDY)
    ours = server.post("/v1/completions", prompt="Once upon", temperature=0, max_tokens=6, ignore_eos=True)
    assert answer["content"] == ours["choices"][0]["text"]
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert answer["tokens"] == [] and answer["tokens_predicted"] == 6 and not answer["truncated"]
    assert answer["tokens_evaluated"] == ours["usage"]["prompt_tokens"]
    assert answer["generation_settings"]["n_predict"] == 6
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["timings"]["predicted_n"] == 6 and answer["timings"]["predicted_per_second"] > 0
    assert answer["prompt"].endswith("Once upon")


def test_a_stream_is_pieces_then_the_end_without_done(server):
    whole = server.post("/completion", prompt="Once upon", return_tokens=True, **GREEDY)
    *pieces, last = events(server, prompt="Once upon", **GREEDY)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert sum((piece["tokens"] for piece in [*pieces, last]), []) == whole["tokens"]
    assert not any(piece["stop"] for piece in pieces) and last["stop"] and last["content"] == ""
    assert last["timings"]["predicted_n"] == 6


def test_prompts_of_texts_and_tokens(server):
    tokens = server.post("/tokenize", content="Once upon")["tokens"]
    mixed = server.post("/completion", prompt=[*tokens[:1], server.post("/detokenize", tokens=tokens[1:])["content"]],
                        **GREEDY)  # fmt: skip
    assert mixed["content"] == server.post("/completion", prompt=tokens, **GREEDY)["content"]
    several = server.post("/completions", prompt=["Once", tokens], **GREEDY)
    assert [answer["index"] for answer in several] == [0, 1]
    assert several[1]["content"] == mixed["content"]


def test_a_stop_string_is_told(server):
    content = server.post("/completion", prompt="Once", **GREEDY)["content"]
    answer = server.post("/completion", prompt="Once", stop=[content[2:5]], **GREEDY)
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", content[2:5])
    assert answer["content"] == content[: content.index(content[2:5])]


def test_grammars_biases_and_probabilities(server):
    answer = server.post("/completion", prompt="Say:", grammar='root ::= "yes" | "no"', n_predict=16)
    assert answer["content"] in ("yes", "no")
    answer = server.post("/completion", prompt="Say:", json_schema={"type": "boolean"}, n_predict=16)
    assert answer["content"] in ("true", "false")
    answer = server.post("/completion", prompt="Once", n_probs=3, logit_bias=[[65, 100]], **GREEDY)
    assert len(answer["completion_probabilities"]) == 6
    for position in answer["completion_probabilities"]:
        assert position["id"] == 65 and len(position["top_logprobs"]) == 3
        assert {"id", "token", "bytes", "logprob"} <= set(position["top_logprobs"][0])


def test_an_equal_seed_gives_an_equal_text(server):
    asked = {"prompt": "Once", "n_predict": 12, "seed": 3, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}
    assert server.post("/completion", **asked)["content"] == server.post("/completion", **asked)["content"]
    assert server.post("/completion", **asked | {"seed": 4})["content"] != server.post("/completion", **asked)["content"]


@pytest.mark.parametrize(
    "name, value",
    [("mirostat", 2), ("dry_multiplier", 0.8), ("xtc_probability", 0.5), ("typical_p", 0.5), ("dynatemp_range", 1),
     ("top_n_sigma", 1.0), ("n_predict", 0), ("repeat_penalty", -1), ("n_probs", 21), ("logit_bias", [[1]])],
)  # fmt: skip
def test_what_is_not_here_is_refused_by_its_name(server, name, value):
    error = server.post("/completion", 400, **{"prompt": "a", name: value})["error"]
    assert error["code"] == 400 and error["param"] == name and error["message"].startswith(name)


def test_props_and_templates(server):
    props = server.get("/props")
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["default_generation_settings"]["params"]["top_k"] > 0
    assert props["total_slots"] > 0 and props["model_path"] == "toy" and props["build_info"].startswith("quire-")
    messages = [{"role": "user", "content": "What is Quire?"}]
    prompt = server.post("/apply-template", messages=messages)["prompt"]
    assert "What is Quire?" in prompt and props["chat_template"]
    tokens = server.post("/tokenize", content=prompt)["tokens"]
    assert tokens == server.post("/tokenize", messages=messages)["tokens"]
    assert server.request("GET", "/slots")[0] == 404


def test_pieces_of_tokens(server):
    answer = server.post("/tokenize", content="naïve", with_pieces=True)
    assert all(set(token) == {"id", "piece"} for token in answer["tokens"])
    assert server.post("/detokenize", tokens=[token["id"] for token in answer["tokens"]])["content"] == "naïve"
