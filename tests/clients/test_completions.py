import pytest

from conftest import MODEL

PROMPT = "The KV cache keeps"
HOT = {"temperature": 1.2, "top_p": 1.0, "extra_body": {"top_k": -1}}  # few samples are alike


@pytest.fixture(scope="module")
def complete(client):
    def complete(prompt=PROMPT, **fields):
        return client.completions.create(**({"model": MODEL, "prompt": prompt, "temperature": 0} | fields))

    return complete


@pytest.fixture(scope="module")
def tokenize(server):
    return lambda text: server.post("/tokenize", prompt=text)["tokens"]


@pytest.fixture(scope="module")
def plain(complete):
    return complete()


def test_a_completion_has_every_field_and_its_type(plain):
    assert plain.id.startswith("cmpl-") and plain.object == "text_completion" and plain.model == MODEL
    assert isinstance(plain.created, int)
    [choice] = plain.choices
    assert choice.index == 0 and choice.text and choice.logprobs is None
    assert choice.finish_reason == "length" and choice.stop_reason is None
    assert plain.usage.completion_tokens == 16  # OpenAI's default
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + 16
    assert plain.usage.prompt_tokens_details.cached_tokens >= 0
    assert plain.system_fingerprint.startswith("quire-")


def test_every_form_of_prompt_gives_the_same_text(complete, tokenize, plain):
    text = plain.choices[0].text
    ids, other_ids = tokenize(PROMPT), tokenize("Once there was")
    other = complete("Once there was").choices[0].text
    assert complete(ids).choices[0].text == text
    for prompts in ([PROMPT, "Once there was"], [ids, other_ids]):
        answer = complete(prompts)
        assert [(choice.index, choice.text) for choice in answer.choices] == [(0, text), (1, other)]
        assert answer.usage.prompt_tokens == len(ids) + len(other_ids)
        assert answer.usage.completion_tokens == 32


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(complete):
    fields = dict(temperature=0.5, seed=1, n=2, max_tokens=8)
    answer = complete([PROMPT, "Once there was"], **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    each = [*complete(**fields).choices, *complete("Once there was", **fields).choices]
    assert [choice.text for choice in answer.choices] == [choice.text for choice in each]
    assert answer.usage.completion_tokens == 4 * 8


def test_max_tokens_bounds_the_output(complete, plain):
    answer = complete(max_tokens=5)
    assert answer.usage.completion_tokens == 5
    assert plain.choices[0].text.startswith(answer.choices[0].text)
    assert complete(max_tokens=None).usage.completion_tokens == 16


def test_echo_puts_the_prompt_before_the_output(complete, tokenize, plain):
    assert complete(echo=True).choices[0].text == PROMPT + plain.choices[0].text
    assert complete(tokenize(PROMPT), echo=True).choices[0].text == PROMPT + plain.choices[0].text
    nothing = complete(echo=True, max_tokens=0)
    assert nothing.choices[0].text == PROMPT
    assert nothing.usage.completion_tokens == 0


def test_logprobs_are_four_parallel_lists(complete, plain):
    logprobs = complete(logprobs=3).choices[0].logprobs
    assert "".join(logprobs.tokens) == plain.choices[0].text
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 16
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(16)]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert logprob <= 0 and len(top) == 3
        assert top[token] == logprob == max(top.values())  # greedy, and printed the same way twice


def test_logprobs_zero_reports_the_sampled_tokens(complete):
    logprobs = complete(logprobs=0).choices[0].logprobs
    assert [list(top) for top in logprobs.top_logprobs] == [[token] for token in logprobs.tokens]


def test_tokens_can_be_named_by_their_ids(complete):
    choice = complete(logprobs=1, extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True}).choices[0]
    assert choice.logprobs.tokens == [f"token_id:{id}" for id in choice.token_ids]
    assert len(choice.prompt_token_ids) > 0


def test_a_stop_string_ends_the_text_and_is_not_in_it(complete, plain):
    text = plain.choices[0].text
    stop = text[10:14]
    cut = complete(stop=stop).choices[0]
    assert cut.text == text[: text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    kept = complete(stop=["never there", stop], extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == text[: text.index(stop)] + stop


def test_a_stop_token_ends_the_text(complete):
    ids = complete(extra_body={"return_token_ids": True}).choices[0].token_ids
    choice = complete(extra_body={"stop_token_ids": [ids[3]], "return_token_ids": True}).choices[0]
    assert choice.finish_reason == "stop" and choice.stop_reason == ids[3]
    assert choice.token_ids == ids[: ids.index(ids[3]) + 1]


def test_a_seed_decides_the_sample(complete):
    def sample(seed, **fields):
        return complete("Once", seed=seed, **HOT, **fields).choices

    texts = [sample(seed)[0].text for seed in (1, 1, 20, -3, -3)]
    assert texts[0] == texts[1] and texts[3] == texts[4]
    assert len(set(texts)) == 3
    several = sample(1, n=3)
    assert several[0].text == texts[0] and len({choice.text for choice in several}) == 3


def test_a_seed_holds_beside_other_requests(complete):
    alone = complete(seed=5, **HOT).choices[0].text
    batch = complete([PROMPT, "Once there was", "What is 2 plus 3?"], seed=5, **HOT)
    assert batch.choices[0].text == alone


def test_best_of_gives_the_likeliest(complete):
    fields = dict(seed=11, logprobs=0, **HOT)
    all_of_them = complete(n=6, **fields)
    best = complete(n=2, best_of=6, **fields)
    ranked = sorted(all_of_them.choices, key=lambda choice: sum(choice.logprobs.token_logprobs), reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]


def test_a_bias_forbids_and_forces_tokens(complete, tokenize):
    [forced] = tokenize("a")
    assert complete(max_tokens=3, logit_bias={str(forced): 100}).choices[0].text == "aaa"
    first = complete(max_tokens=1).choices[0].text
    banned = complete(max_tokens=1, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    assert complete(max_tokens=1, logit_bias={str(banned): -100}).choices[0].text != first


def test_only_allowed_tokens_come_and_bad_words_do_not(complete, tokenize, plain):
    allowed = tokenize("a") + tokenize("b")
    assert set(complete(extra_body={"allowed_token_ids": allowed}).choices[0].text) <= {"a", "b"}
    assert " the" in plain.choices[0].text
    assert " the" not in complete(extra_body={"bad_words": ["the"]}).choices[0].text


def test_penalties_change_a_repetitive_text(complete):
    def text(**fields):
        return complete("a a a a a a a a a a", max_tokens=24, **fields).choices[0].text

    assert text(frequency_penalty=2.0, presence_penalty=2.0) != text()
    assert text(extra_body={"repetition_penalty": 1.8}) != text()


def test_min_tokens_and_ignore_eos_go_past_the_end(client):
    def tokens(**extra):
        answer = client.completions.create(
            model=MODEL,
            prompt="<|im_start|>user\nWhat is 2 plus 3?<|im_end|>\n<|im_start|>assistant\n",
            temperature=0,
            max_tokens=60,
            extra_body=extra,
        )
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    count, reason = tokens()
    assert count < 60 and reason == "stop"
    assert tokens(ignore_eos=True) == (60, "length")
    assert tokens(min_tokens=count + 5)[0] >= count + 5


def test_a_wider_beam_finds_other_and_likelier_texts(complete, tokenize):
    def search(width):
        extra = {"use_beam_search": True, "return_token_ids": True}
        return complete(n=width, max_tokens=8, extra_body=extra).choices

    def logprob(choice):
        scored = complete(choice.prompt_token_ids + choice.token_ids, max_tokens=0, echo=True, logprobs=0).choices[0]
        return sum(scored.logprobs.token_logprobs[len(choice.prompt_token_ids) :])

    [greedy] = search(1)
    assert greedy.text == complete(max_tokens=8).choices[0].text
    beams = search(4)
    assert len({choice.text for choice in beams}) == 4
    logprobs = [logprob(choice) for choice in beams]
    assert logprobs == sorted(logprobs, reverse=True)
    assert logprobs[0] >= logprob(greedy)


def test_prompt_logprobs_cover_the_prompt(complete, tokenize):
    ids = tokenize(PROMPT)
    choice = complete(ids, max_tokens=1, extra_body={"prompt_logprobs": 2}).choices[0]
    assert choice.prompt_logprobs[0] is None and len(choice.prompt_logprobs) == len(ids)
    for id, position in zip(ids[1:], choice.prompt_logprobs[1:]):
        assert 2 <= len(position) <= 3
        assert set(position[str(id)]) == {"logprob", "rank", "decoded_token"}
        assert {1, 2} <= {entry["rank"] for entry in position.values()}


def test_a_prompt_is_cut_to_its_last_tokens(complete, tokenize):
    ids = tokenize("Once there was a cache. " + PROMPT)
    cut = complete(ids, extra_body={"truncate_prompt_tokens": 4})
    assert cut.usage.prompt_tokens == 4
    assert cut.choices[0].text == complete(ids[-4:]).choices[0].text


def test_prefixes_are_shared_within_a_salt_only(complete):
    prompt = "Shared words of a prompt that fills some blocks. " * 8

    def cached(salt):
        extra = {"cache_salt": salt} if salt else {}
        return complete(prompt, max_tokens=1, extra_body=extra).usage.prompt_tokens_details.cached_tokens

    assert cached("red") == 0
    assert cached("red") > 0 and cached("red") % 16 == 0
    assert cached("blue") == 0


def test_null_is_absent_and_unknown_fields_are_ignored(server, plain):
    nulls = {name: None for name in ("stop", "n", "logprobs", "seed", "logit_bias", "user", "stream", "stream_options")}
    answer = server.post("/v1/completions", prompt=PROMPT, temperature=0, no_such_field=1, **nulls)
    assert answer["choices"][0]["text"] == plain.choices[0].text


def test_timings_and_ids_are_ours_to_ask_for(complete):
    answer = complete(max_tokens=4, extra_body={"timings": True, "request_id": "mine-1", "priority": 3})
    assert answer.id == "cmpl-mine-1"
    assert answer.timings["predicted_n"] == 4
    assert answer.timings["cache_n"] + answer.timings["prompt_n"] == answer.usage.prompt_tokens
    assert all(answer.timings[name] >= 0 for name in ("queue_ms", "prompt_ms", "predicted_ms"))
