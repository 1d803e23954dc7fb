"""LLM.chat, the tokenizer, beams and embeddings."""

from __future__ import annotations

import math

import pytest

from quire import LLM, BeamSearchParams, InvalidRequestError, SamplingParams

QUESTION = [{"role": "user", "content": "What is Quire?"}]


def test_a_chat_is_the_templates_prompt_continued(llm):
    params = SamplingParams(temperature=0, max_tokens=24)
    [output] = llm.chat(QUESTION, params, use_tqdm=False)
    ids = llm.get_tokenizer().apply_chat_template(QUESTION, add_generation_prompt=True)
    assert output.prompt_token_ids == ids
    assert output.outputs[0].token_ids == llm.generate([ids], params, use_tqdm=False)[0].outputs[0].token_ids
    assert "engine" in output.outputs[0].text  # what README shows of the bundled model


def test_several_conversations_are_one_batch(llm):
    params = SamplingParams(temperature=0, max_tokens=8)
    other = [{"role": "user", "content": "what is a kv cache?"}]
    outputs = llm.chat([QUESTION, other], params, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == \
        [llm.chat(each, params, use_tqdm=False)[0].outputs[0].text for each in (QUESTION, other)]


def test_contents_may_be_parts_and_none_is_empty(llm):
    tokenizer = llm.get_tokenizer()
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "Quire?"}]}]
    assert tokenizer.apply_chat_template(parts) == tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is\nQuire?"}])
    with pytest.raises(InvalidRequestError, match="messages\\[0\\].content has a part of type 'image_url'"):
        tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(InvalidRequestError, match="messages\\[0\\] is no message"):
        tokenizer.apply_chat_template([{"content": "x"}])


def test_what_a_message_holds_never_becomes_a_special_token(llm):
    tokenizer = llm.get_tokenizer()
    special = tokenizer.eos_token
    assert tokenizer.encode(special) == [tokenizer.eos_token_id]  # in a prompt it is one
    with_it = tokenizer.apply_chat_template([{"role": "user", "content": "a" + special}])
    without = tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
    count = with_it.count(tokenizer.eos_token_id)
    assert count == without.count(tokenizer.eos_token_id) and len(with_it) > len(without)


def test_a_template_may_be_given_with_variables_and_tools(llm):
    template = "{% for m in messages %}{{ m.content }}{{ mark }}{% endfor %}{{ tools[0].function.name if tools }}"
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(QUESTION, tools, chat_template=template, tokenize=False, mark="!")
    assert text == "What is Quire?!look_up"
    [output] = llm.chat(QUESTION, SamplingParams(max_tokens=1), use_tqdm=False, chat_template=template,
                        chat_template_kwargs={"mark": "!"}, tools=tools)
    assert tokenizer.decode(output.prompt_token_ids) == text
    with pytest.raises(TypeError, match="return_tensors='pt' is not supported"):
        tokenizer.apply_chat_template(QUESTION, return_tensors="pt", return_dict=False)
    with pytest.raises(ValueError, match="'eos_token', which is no variable"):
        tokenizer.apply_chat_template(QUESTION, eos_token="x")


def test_tool_calls_of_a_message_have_their_arguments_as_objects(llm):
    template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments.city }}{% endfor %}"
    call = {"role": "assistant", "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Bern"}'}}]}
    assert llm.get_tokenizer().apply_chat_template([call], chat_template=template, tokenize=False) == "Bern"


def test_the_last_message_may_be_continued(llm):
    messages = [*QUESTION, {"role": "assistant", "content": "Quire is an"}]
    text = llm.get_tokenizer().apply_chat_template(messages, continue_final_message=True, tokenize=False)
    assert text.endswith("Quire is an")
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    for begun in ("<", "e", "end"):
        text = llm.get_tokenizer().apply_chat_template(
            [{"role": "assistant", "content": begun}], chat_template=template, continue_final_message=True,
            tokenize=False)
        assert text == f"<|assistant|>{begun}"
    with pytest.raises(ValueError, match="exclude each other"):
        llm.chat(messages, use_tqdm=False, continue_final_message=True)


def test_encode_and_decode_are_inverse(llm):
    tokenizer = llm.get_tokenizer()
    text = "Grüße, 世界! A KV cache."
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and max(ids) < len(tokenizer)
    assert tokenizer(text)["input_ids"] == ids and tokenizer([text, "a"])["attention_mask"][0] == [1] * len(ids)
    assert tokenizer.batch_decode([ids, ids[:1]])[0] == text
    assert len(tokenizer.convert_ids_to_tokens(ids)) == len(ids)
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""


def test_a_beam_of_one_is_greedy_and_more_beams_find_no_worse(llm):
    prompt = "The KV cache"
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    [greedy] = llm.generate(prompt, params, use_tqdm=False)
    searches = [BeamSearchParams(beam_width=width, max_tokens=6, ignore_eos=True) for width in (1, 4)]
    [one, four] = (llm.beam_search([{"prompt": prompt}], search)[0] for search in searches)
    assert one.sequences[0].tokens == greedy.prompt_token_ids + greedy.outputs[0].token_ids
    assert one.sequences[0].text == prompt + greedy.outputs[0].text
    assert math.isclose(one.sequences[0].cum_logprob, greedy.outputs[0].cumulative_logprob, rel_tol=1e-4)
    scores = [sequence.cum_logprob for sequence in four.sequences]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert scores[0] >= one.sequences[0].cum_logprob - 1e-4


def test_embeddings_have_length_one_and_do_not_depend_on_neighbours(llm):
    [first, second] = llm.embed(["a kv cache", "the scheduler"], use_tqdm=False)
    assert math.isclose(sum(x * x for x in first.outputs.embedding), 1, rel_tol=1e-4)
    assert first.outputs.hidden_size == len(second.outputs.embedding) > 1
    assert llm.embed("a kv cache", use_tqdm=False)[0].outputs.embedding == first.outputs.embedding
    with LLM(max_model_len=256, max_num_seqs=2, pooler_config={"pooling_type": "MEAN", "dimensions": 8}) as mean:
        assert len(mean.embed("a kv cache", use_tqdm=False)[0].outputs.embedding) == 8
