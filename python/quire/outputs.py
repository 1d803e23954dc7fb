"""What comes of a request, with vLLM's attributes. All are plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Union


@dataclasses.dataclass
class Logprob:
    """A token's log-probability: the logarithm of the softmax of the model's logits as they are."""

    logprob: float
    rank: Optional[int] = None  # 1 and the number of tokens that are more likely
    decoded_token: Optional[str] = None


# Of one position: the token that stands there, and the most likely ones, by id.
TokenLogprobs = dict[int, Logprob]


@dataclasses.dataclass
class CompletionOutput:
    """One continuation of a prompt."""

    index: int
    text: str
    token_ids: list[int]  # [length]
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[list[TokenLogprobs]] = None  # [length], where asked for
    finish_reason: Optional[str] = None  # stop, length, abort, timeout, error; None: it is unfinished
    stop_reason: Union[int, str, None] = None  # the stop token or text; None with "stop": EOS
    error: Optional[str] = None  # why, with finish_reason "error" or "timeout"
    score: Optional[float] = None  # what a beam search has ranked it by

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestMetrics:
    """When what happened, in seconds of time.monotonic's clock; None: it has not."""

    arrival_time: Optional[float] = None
    first_scheduled_time: Optional[float] = None
    first_token_time: Optional[float] = None
    last_token_time: Optional[float] = None
    finished_time: Optional[float] = None

    @property
    def time_to_first_token(self) -> Optional[float]:
        """Seconds."""
        if self.arrival_time is None or self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time


@dataclasses.dataclass
class RequestOutput:
    """A request, and what has come of it so far."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Optional[list[Optional[TokenLogprobs]]] = None  # the first is None
    metrics: Optional[RequestMetrics] = None
    num_cached_tokens: Optional[int] = None  # of the prompt, which came from the prefix cache

    def __getitem__(self, key: str) -> Any:
        """nano-vllm's form of an output: "text" and "token_ids" of the first."""
        if key not in ("text", "token_ids"):
            raise KeyError(key)
        return getattr(self.outputs[0], key)


@dataclasses.dataclass
class EmbeddingOutput:
    embedding: list[float]  # [hidden_size], of length 1

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclasses.dataclass
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclasses.dataclass
class ScoringOutput:
    score: float  # of a reranker 0 to 1, or the difference of its logits; else the cosine of two embeddings


@dataclasses.dataclass
class ScoringRequestOutput:
    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclasses.dataclass
class BeamSearchSequence:
    """One text that a search has found. As in vLLM, tokens and text begin with the prompt's."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None
    score: Optional[float] = None  # cum_logprob / tokens ^ length_penalty, which ranks it


@dataclasses.dataclass
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]  # the best first


DecodeToken = Callable[[int], str]


def read_position(tokens: list[list[Any]], decode: DecodeToken) -> TokenLogprobs:
    """tokens: [id, logprob, rank] of the token that stands there, then of the most likely ones."""
    found: TokenLogprobs = {}
    for token, logprob, rank in tokens:
        if token not in found:
            found[token] = Logprob(float("-inf") if logprob is None else logprob, rank or None, decode(token))
    return found


def read_completion(event: dict[str, Any], decode: DecodeToken, wants_logprobs: bool) -> CompletionOutput:
    logprobs = [read_position(position, decode) for position in event.get("logprobs", ())]
    return CompletionOutput(event["index"], event["text"], event["token_ids"], event.get("cumulative_logprob"),
                            logprobs if wants_logprobs else None, event.get("finish_reason"),
                            event.get("stop_reason"), event.get("error"), event.get("score"))


def read_metrics(event: dict[str, Any]) -> RequestMetrics:
    outputs = event["outputs"]

    def least(name: str) -> Optional[float]:
        return min((one[name] for one in outputs if one.get(name) is not None), default=None)

    def most(name: str) -> Optional[float]:
        return max((one[name] for one in outputs if one.get(name) is not None), default=None)

    return RequestMetrics(event["arrival"], least("scheduled"), least("first_token"), most("last_token"),
                          most("ended"))
