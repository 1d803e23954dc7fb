"""Quire: LLM inference, with vLLM's classes.

    from quire import LLM, SamplingParams
    outputs = LLM("Qwen/Qwen3-0.6B").generate(["Once upon a time"], SamplingParams(max_tokens=100))
"""

from ._machine import doctor, plan
from .async_llm import AsyncLLM
from .exceptions import EngineError, ForkError, InvalidRequestError, QueueFullError, QuireError
from .inputs import PromptType, TextPrompt, TokensPrompt
from .llm import LLM
from .outputs import (BeamSearchOutput, BeamSearchSequence, CompletionOutput, EmbeddingOutput,
                      EmbeddingRequestOutput, Logprob, RequestMetrics, RequestOutput, ScoringOutput,
                      ScoringRequestOutput)
from .sampling_params import (BeamSearchParams, GuidedDecodingParams, RequestOutputKind, SamplingParams,
                              StructuredOutputsParams)
from .tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "AsyncLLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "CompletionOutput", "EmbeddingOutput",
    "EmbeddingRequestOutput", "EngineError", "ForkError", "GuidedDecodingParams", "InvalidRequestError", "LLM",
    "Logprob", "PromptType", "QueueFullError", "QuireError", "RequestMetrics", "RequestOutput", "RequestOutputKind",
    "SamplingParams", "ScoringOutput", "ScoringRequestOutput", "StructuredOutputsParams", "TextPrompt", "Tokenizer",
    "TokensPrompt", "doctor", "plan"]
