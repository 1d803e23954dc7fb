"""LLM.score: cosines, and what a reranker says, which is the server's /score."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire import LLM, InvalidRequestError

QWEN3 = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["No", "Yes"],
         "is_original_qwen3_reranker": True}
QUERY = "What is a cat?"
DOCUMENTS = ["A cat is an animal.", "zzz"]


@pytest.fixture(scope="module")
def reranker():
    with LLM(max_model_len=512, max_num_seqs=4, dtype="float32", hf_overrides=QWEN3) as made:
        yield made


def scores(llm: LLM, left: Any, right: Any, **more: Any) -> list[float]:
    return [one.outputs.score for one in llm.score(left, right, use_tqdm=False, **more)]


def changed_model(llm: LLM, folder: Path, **fields: Any) -> str:
    """The bundled model with other fields of config.json."""
    shutil.copytree(llm.info["model"], folder / "model")
    config = folder / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    return str(folder / "model")


def test_a_reranker_scores_as_transformers(reranker):
    # References: tests/server/pooling_server_test.cpp.
    assert scores(reranker, QUERY, DOCUMENTS) == pytest.approx([0.9325454, 0.2334527], abs=2e-5)
    assert scores(reranker, [QUERY] * 2, DOCUMENTS[::-1]) == pytest.approx([0.2334527, 0.9325454], abs=2e-5)
    assert scores(reranker, QUERY, DOCUMENTS[0], instruction="Judge.") == pytest.approx([0.8075774], abs=2e-5)
    [logits] = scores(reranker, QUERY, DOCUMENTS[0], pooling_params=SimpleNamespace(use_activation=False))
    assert logits == pytest.approx(2.626, abs=2e-3)  # ln(p / (1 - p))
    assert reranker.info["classifier"]["labels"] == ["No", "Yes"]


def test_a_long_document_of_a_reranker_is_cut_and_nothing_else(reranker):
    words = "cat " * 2000
    [cut] = reranker.score(QUERY, words, truncate_prompt_tokens=200, use_tqdm=False)
    assert 190 < len(cut.prompt_token_ids) <= 200
    [whole] = reranker.score(QUERY, "zzz", use_tqdm=False)
    assert cut.prompt_token_ids[-5:] == whole.prompt_token_ids[-5:]  # the prompt's end is there
    with pytest.raises(InvalidRequestError, match="prompt 1 has .* tokens; with max_model_len 512"):
        reranker.score(QUERY, words, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens is 50; .* without its document"):
        reranker.score(QUERY, words, truncate_prompt_tokens=50, use_tqdm=False)
    assert len(reranker.score(QUERY, words, truncate_prompt_tokens=-1, use_tqdm=False)[0].prompt_token_ids) <= 512


def test_special_tokens_of_a_document_are_text(reranker):
    eos = reranker.get_tokenizer().eos_token
    [with_it, without] = reranker.score(QUERY, [eos, "a"], use_tqdm=False)
    end = reranker.get_tokenizer().eos_token_id
    assert with_it.prompt_token_ids.count(end) == without.prompt_token_ids.count(end)


def test_a_checkpoint_says_that_it_is_a_reranker_and_how_it_asks(llm, tmp_path):
    model = changed_model(llm, tmp_path, architectures=["Qwen3ForSequenceClassification"],
                          classifier_from_token=["No", "Yes"])
    template = "{% for m in messages %}{% if m.role == 'query' %}{{ m.content }}: " \
               "{% elif m.role == 'document' %}{{ m.content }}{% endif %}{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    with LLM(model, max_model_len=128, max_num_seqs=2) as made:
        [one] = made.score(QUERY, "zzz", use_tqdm=False)
        assert made.get_tokenizer().decode(one.prompt_token_ids) == QUERY + ": zzz"


def test_any_other_models_score_is_the_cosine(llm):
    [same, other] = llm.score("a kv cache", ["a kv cache", "the scheduler"], use_tqdm=False)
    assert same.outputs.score == pytest.approx(1, rel=1e-4) and other.outputs.score < same.outputs.score
    assert llm.info["classifier"] is None
    [cut] = scores(llm, "the scheduler", "the scheduler " * 50, truncate_prompt_tokens=len(
        llm.get_tokenizer().encode("the scheduler")))
    assert cut == pytest.approx(1, rel=1e-3)  # the beginning is kept
    with pytest.raises(ValueError, match="data_1 has 2 texts and data_2 3"):
        llm.score(["a", "b"], ["a", "b", "c"])


def test_what_cannot_be_scored_so_names_the_model(llm, tmp_path):
    with pytest.raises(InvalidRequestError, match="instruction says nothing of cosines, which the scores of .* are"):
        llm.score(QUERY, DOCUMENTS, instruction="Judge.")
    with pytest.raises(InvalidRequestError, match="use_activation=False says nothing of cosines"):
        llm.score(QUERY, DOCUMENTS, pooling_params=SimpleNamespace(use_activation=False))
    with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens is 0; it must be -1, or 1 to 512"):
        llm.score(QUERY, DOCUMENTS, truncate_prompt_tokens=0)
    with pytest.raises(InvalidRequestError, match="BertForSequenceClassification"):
        LLM(changed_model(llm, tmp_path, architectures=["BertForSequenceClassification"]))


@pytest.mark.parametrize("overrides, why", [({"rope_theta": 1}, "rope_theta.* is not supported"),
                                            ({"classifier_from_token": ["No"]}, "at least two texts"),
                                            ({"classifier_from_token": {1}}, "no JSON"), (print, "must be a dict")])
def test_overrides_that_are_not_right_say_why(overrides, why):
    with pytest.raises(InvalidRequestError, match=why):
        LLM(max_model_len=128, hf_overrides=overrides)
