"""LLM.generate: vLLM's offline examples, by their behaviour."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

import quire
from quire import LLM, InvalidRequestError, SamplingParams, StructuredOutputsParams, TokensPrompt

PROMPTS = ["What is Quire?", "The KV cache", "A scheduler", "Once upon"]


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def test_outputs_are_in_the_order_of_prompts_and_know_them(llm, greedy):
    outputs = llm.generate(PROMPTS, greedy, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    tokenizer = llm.get_tokenizer()
    for output in outputs:
        assert output.finished and output.prompt_token_ids == tokenizer.encode(output.prompt)
        completion = output.outputs[0]
        assert completion.index == 0 and completion.finished()
        assert completion.finish_reason in ("stop", "length")
        assert 0 < len(completion.token_ids) <= 12
        assert tokenizer.decode(completion.token_ids, skip_special_tokens=True) == completion.text
    assert len({output.request_id for output in outputs}) == len(PROMPTS)


def test_a_batch_says_what_each_prompt_says_alone(llm, greedy):
    alone = [texts(llm.generate(prompt, greedy, use_tqdm=False))[0] for prompt in PROMPTS]
    assert texts(llm.generate(PROMPTS, greedy, use_tqdm=False)) == alone
    assert len(set(alone)) > 1


def test_every_form_of_a_prompt_is_the_same_prompt(llm, greedy):
    text = PROMPTS[0]
    ids = llm.get_tokenizer().encode(text)
    forms = [text, {"prompt": text}, TokensPrompt(prompt_token_ids=ids), ids, {"prompt": text, "prompt_token_ids": ids}]
    found = [llm.generate(form, greedy, use_tqdm=False)[0].outputs[0].token_ids for form in forms]
    assert all(one == found[0] for one in found)
    assert llm.generate([ids, ids], greedy, use_tqdm=False)[1].outputs[0].token_ids == found[0]


def test_the_program_says_the_same(llm):
    """The command line is another way into the same engine."""
    program = subprocess.run([sys.executable, "-m", "quire", "generate", "-p", PROMPTS[0], "--max-tokens", "12",
                              "--temperature", "0"], capture_output=True, text=True, check=True)
    [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert output.outputs[0].text.strip() in program.stdout


def test_sampling_params_may_be_one_each(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 3, 5, 7)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 3, 5, 7]
    with pytest.raises(ValueError, match="4 prompts with 2 sampling parameters"):
        llm.generate(PROMPTS, params[:2], use_tqdm=False)


def test_a_seed_makes_samples_repeatable_and_each_of_n_has_its_own(llm):
    def sample(n, seed):
        params = SamplingParams(n=n, temperature=2.0, seed=seed, max_tokens=10)
        [output] = llm.generate(PROMPTS[1], params, use_tqdm=False)
        assert [one.index for one in output.outputs] == list(range(n))
        return [one.token_ids for one in output.outputs]

    three = sample(3, 7)
    assert three == sample(3, 7)
    assert three == [sample(1, seed)[0] for seed in (7, 8, 9)]
    assert len(set(map(tuple, three))) > 1


def test_without_parameters_the_model_authors_hold(llm):
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.9)  # models/toy/generation_config.json

    def draws(given=None):  # of an engine of their own: a request's seed follows from its number there
        with LLM(max_model_len=512, max_num_seqs=16) as fresh:
            return texts(fresh.generate([PROMPTS[0]] * 8, given, use_tqdm=False))

    assert draws() == draws(params) != draws(SamplingParams())


def test_stop_strings_end_the_text(llm):
    [free] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    word = free.outputs[0].text.split()[2]
    [cut] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, stop=word), use_tqdm=False)
    assert cut.outputs[0].text == free.outputs[0].text[:free.outputs[0].text.index(word)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", word)


def test_logprobs_have_the_token_and_the_likeliest(llm):
    [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=0),
                            use_tqdm=False)
    completion = output.outputs[0]
    assert len(completion.logprobs) == len(completion.token_ids)
    for token, position in zip(completion.token_ids, completion.logprobs):
        assert len(position) == 3 and position[token].rank == 1  # greedy: it is the likeliest itself
        assert position[token].logprob == max(one.logprob for one in position.values()) <= 0
        assert position[token].decoded_token == llm.get_tokenizer().decode([token])
    total = sum(position[token].logprob for token, position in zip(completion.token_ids, completion.logprobs))
    assert math.isclose(completion.cumulative_logprob, total, rel_tol=1e-5)
    assert output.prompt_logprobs[0] is None
    assert [token in position for token, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:])] \
        == [True] * (len(output.prompt_token_ids) - 1)
    [plain] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert plain.outputs[0].logprobs is None and plain.prompt_logprobs is None


def test_a_second_prompt_of_the_same_beginning_comes_from_the_prefix_cache(greedy):
    prefix = "The KV cache keeps the keys and values that attention computed for earlier tokens. " * 6
    with LLM(max_model_len=512, max_num_seqs=4) as llm:
        [cold] = llm.generate(prefix + "Why?", greedy, use_tqdm=False)
        [warm] = llm.generate(prefix + "How?", greedy, use_tqdm=False)
    assert cold.num_cached_tokens == 0 and warm.num_cached_tokens >= 64
    with LLM(max_model_len=512, max_num_seqs=4, enable_prefix_caching=False) as llm:
        for _ in range(2):
            [output] = llm.generate(prefix + "How?", greedy, use_tqdm=False)
            assert output.num_cached_tokens == 0
        assert output.outputs[0].token_ids == warm.outputs[0].token_ids


def test_structured_outputs_hold_the_text(llm):
    def ask(**source):
        wanted = StructuredOutputsParams(**source)
        params = SamplingParams(temperature=1, seed=3, max_tokens=40, structured_outputs=wanted)
        return texts(llm.generate(PROMPTS[0], params, use_tqdm=False))[0]

    assert ask(choice=["alpha", "beta"]) in ("alpha", "beta")
    assert ask(regex="[0-9]{3}").isdigit()
    assert ask(json={"type": "boolean"}) in ("true", "false")
    with pytest.raises(ValueError, match="regex, choice"):
        StructuredOutputsParams(regex="a", choice=["b"])


def test_token_masks_and_biases_reach_the_sampler(llm):
    token = llm.get_tokenizer().encode("cache")[0]
    for params in (SamplingParams(allowed_token_ids=[token], max_tokens=3),
                   SamplingParams(logit_bias={token: math.inf}, temperature=0, max_tokens=3)):
        assert llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids == [token] * 3


def test_nothing_is_asked_of_no_prompts(llm):
    assert llm.generate([], use_tqdm=False) == []


def test_a_mistake_is_a_value_error_and_nothing_runs(llm, greedy):
    with pytest.raises(InvalidRequestError, match="prompt 2 has .* tokens; with max_model_len 512"):
        llm.generate(["a", "word " * 600], greedy, use_tqdm=False)
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        llm.generate([[]], greedy, use_tqdm=False)
    with pytest.raises(ValueError, match="has token id 1000000"):
        llm.generate([[10**6]], greedy, use_tqdm=False)
    with pytest.raises(ValueError, match="logprobs"):
        llm.generate("a", SamplingParams(logprobs=100), use_tqdm=False)
    with pytest.raises(ValueError, match="a prompt is a text"):
        llm.generate([3.5], greedy, use_tqdm=False)


def test_a_timeout_ends_with_what_there_is(llm):
    [output] = llm.generate("Tell", SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False, timeout=0.02)
    assert output.outputs[0].finish_reason in ("timeout", "length")


def test_metrics_are_in_order(llm, greedy):
    [output] = llm.generate(PROMPTS[0], greedy, use_tqdm=False)
    times = output.metrics
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.last_token_time
    assert times.time_to_first_token == times.first_token_time - times.arrival_time


def test_progress_is_what_the_caller_gives(llm, greedy):
    seen = []

    class Bar:
        def __init__(self, total, desc):
            seen.append(total)

        def update(self, count):
            seen.append(count)

        def close(self):
            seen.append("closed")

    llm.generate(PROMPTS, greedy, use_tqdm=Bar)
    assert seen[0] == 4 and sum(seen[1:-1]) == 4 and seen[-1] == "closed"


def test_nano_vllms_example_runs(llm):
    sampling_params = SamplingParams(temperature=0.6, max_tokens=16)
    prompts = ["introduce yourself", "list all prime numbers within 100"]
    prompts = [llm.get_tokenizer().apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                                       add_generation_prompt=True) for prompt in prompts]
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        assert output["text"] == output.outputs[0].text and output["token_ids"] == output.outputs[0].token_ids


def test_the_machine_and_a_plan_are_dicts():
    assert quire.doctor()["cores"] >= 1
    plan = quire.plan(max_model_len=128, max_num_seqs=2)
    assert plan["total_bytes"] > plan["weights_bytes"] > 0 and plan["fits"] is True
    with pytest.raises(ValueError, match="no such directory|is not|--nonsense"):
        quire.plan(nonsense=3)
