"""What `LLM.score` makes of pairs and of what the engine says of them."""

from __future__ import annotations

import math
from typing import Any, Optional

from . import _native
from ._engine import EngineCore
from .exceptions import InvalidRequestError
from .inputs import Prompt
from .outputs import EmbeddingRequestOutput, ScoringOutput

_REPLACEMENT = "\ufffd"  # what a part of a character is decoded to


def read_most(truncate_prompt_tokens: Optional[int], max_model_len: int) -> Optional[int]:
    """So many tokens at most; None: all."""
    if truncate_prompt_tokens is None:
        return None
    if truncate_prompt_tokens == -1:
        return max_model_len
    if not 1 <= truncate_prompt_tokens <= max_model_len:
        raise InvalidRequestError(f"truncate_prompt_tokens is {truncate_prompt_tokens}; it must be -1, or 1 to "
                                  f"{max_model_len}")
    return truncate_prompt_tokens


def pair_prompt(core: EngineCore, pair: tuple[str, str], instruction: Optional[str], most: Optional[int]) -> Prompt:
    """The prompt by which a reranker judges a query and a document, whose end is cut where it is longer."""
    query, document = pair
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    context: dict[str, Any] = {"messages": messages, "add_generation_prompt": False}
    if instruction is not None:
        context["instruction"] = instruction
    left = len(document.encode())  # tokens of it, at most
    while True:
        ids = _native.render_pair_ids(core.handle, context)
        if most is None or len(ids) <= most:
            return Prompt(None, ids, "")
        words = core.tokenizer.encode(messages[1]["content"], add_special_tokens=False)
        left = min(left, len(words)) - (len(ids) - most)
        if left <= 0:
            raise InvalidRequestError(f"truncate_prompt_tokens is {most}; the prompt has more without its document, "
                                      "which alone is cut")
        messages[1]["content"] = core.tokenizer.decode(words[:left]).rstrip(_REPLACEMENT)


def refuse_of_cosines(core: EngineCore, instruction: Optional[str], activation: bool) -> None:
    for name, is_given in (("instruction", instruction is not None), ("use_activation=False", not activation)):
        if is_given:
            raise InvalidRequestError(f"{name} says nothing of cosines, which the scores of {core.info['name']} are: "
                                      "it is no reranker (classifier_from_token and is_original_qwen3_reranker in "
                                      "config.json or hf_overrides make it one)")


def of_logits(judged: EmbeddingRequestOutput, activation: bool) -> ScoringOutput:
    """Of the logits of "no" and "yes": the share of "yes", or without activation their difference."""
    no, yes = judged.outputs.embedding
    if not activation:
        return ScoringOutput(yes - no)
    most = max(no, yes)
    return ScoringOutput(math.exp(yes - most) / (math.exp(no - most) + math.exp(yes - most)))


def of_cosine(one: EmbeddingRequestOutput, other: EmbeddingRequestOutput) -> ScoringOutput:
    return ScoringOutput(sum(a * b for a, b in zip(one.outputs.embedding, other.outputs.embedding)))
