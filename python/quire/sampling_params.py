"""How one request's tokens are chosen and when it ends. Names, meanings and defaults are vLLM's."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import math
from typing import Any, Callable, Mapping, Optional, Sequence, TypeVar, Union

from ._arguments import refuse_unknown, refuse_unsupported
from .exceptions import InvalidRequestError

_T = TypeVar("_T")


class RequestOutputKind(enum.Enum):
    """What a stream yields. `LLM` gives whole outputs at the end in any case."""

    CUMULATIVE = 0  # each time all so far
    DELTA = 1  # each time what is new
    FINAL_ONLY = 2  # one, at the end


def named_arguments(known: Sequence[str], ignored: Mapping[str, Any]) -> Callable[[type[_T]], type[_T]]:
    """Has a class take no other arguments than these. ignored: vLLM's, with the value that changes nothing."""

    def wrap(cls: type[_T]) -> type[_T]:
        inner: Callable[..., None] = cls.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            refuse_unknown(cls.__name__, kwargs, [*known, *ignored], ())
            refuse_unsupported(cls.__name__, {k: kwargs.pop(k) for k in list(kwargs) if k in ignored}, ignored)
            inner(self, *args, **kwargs)

        __init__.__doc__ = inner.__doc__
        __init__.__wrapped__ = inner  # type: ignore[attr-defined]
        setattr(cls, "__init__", __init__)
        return cls

    return wrap


@dataclasses.dataclass
class StructuredOutputsParams:
    """What the text of an output must be: exactly one of the first six (docs/structured_output.md)."""

    json: Union[str, dict[str, Any], bool, None] = None  # a JSON schema
    regex: Optional[str] = None  # matches the whole text
    choice: Optional[list[str]] = None  # one of these
    grammar: Optional[str] = None  # GBNF, EBNF or Lark
    json_object: Optional[bool] = None  # any JSON object
    structural_tag: Union[str, dict[str, Any], None] = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: Optional[str] = None

    def __post_init__(self) -> None:
        self.to_native()

    def to_native(self) -> dict[str, Any]:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) not in (None, "", [])
                 and not (kind == "json_object" and self.json_object is False)]
        if len(given) != 1:
            raise InvalidRequestError(f"structured_outputs has {', '.join(given) or 'nothing'}; it must have one of "
                                      f"{', '.join(kinds)}")
        value = getattr(self, given[0])
        source = "" if given[0] == "json_object" else value if isinstance(value, str) else json.dumps(value)
        return {"kind": given[0], "source": source, "disable_any_whitespace": self.disable_any_whitespace,
                "disable_additional_properties": self.disable_additional_properties,
                "whitespace_pattern": self.whitespace_pattern}


GuidedDecodingParams = StructuredOutputsParams


def check_range(name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    """InvalidRequestError for what is no number from low to high; NaN is none."""
    right = f"a {'whole ' if whole else ''}number from {low} to {high}" if high < math.inf else f"{low} or more"
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise InvalidRequestError(f"{name} is {value!r}; it must be {right}")


# From, to, whether whole. What depends on the model is looked at when a request is submitted.
_RANGES: dict[str, tuple[float, float, bool]] = {
    "n": (1, 16384, True), "best_of": (1, 16384, True), "temperature": (0, 10000, False),
    "top_p": (0, 1, False), "top_k": (-1, 2**31 - 1, True), "min_p": (0, 1, False), "seed": (0, 2**64 - 1, True),
    "presence_penalty": (-2, 2, False), "frequency_penalty": (-2, 2, False), "repetition_penalty": (1e-4, 1e4, False),
    "max_tokens": (0, 2**31 - 1, True), "min_tokens": (0, 2**31 - 1, True), "logprobs": (-1, 2**31 - 1, True),
    "prompt_logprobs": (-1, 2**31 - 1, True), "truncate_prompt_tokens": (-1, 2**31 - 1, True)}

_NOT_NATIVE = ("output_kind", "structured_outputs", "max_tokens", "logit_bias")
_IGNORED: dict[str, Any] = {
    "logits_processors": None, "flat_logprobs": False, "skip_reading_prefix_cache": None, "extra_args": None,
    "guided_decoding": None}


def _texts(value: Union[str, Sequence[str], None]) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


@dataclasses.dataclass
class SamplingParams:
    """Every field, its range and what its edges do: docs/sampling.md. A value out of its range is an
    InvalidRequestError, which is a ValueError."""

    n: int = 1
    best_of: Optional[int] = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[str, list[str], None] = None
    stop_token_ids: Optional[list[int]] = None
    bad_words: Optional[list[str]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16  # None: as many as the context holds
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: Optional[int] = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: Optional[StructuredOutputsParams] = None
    logit_bias: Optional[dict[int, float]] = None
    allowed_token_ids: Optional[list[int]] = None
    logprob_token_ids: Optional[list[int]] = None

    def __post_init__(self) -> None:
        if self.seed == -1:  # vLLM's way to say none
            self.seed = None
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        self.stop = _texts(self.stop)
        self.stop_token_ids = list(self.stop_token_ids or [])
        self.bad_words = list(self.bad_words or [])
        self._check()

    def _check(self) -> None:
        for name, (low, high, whole) in _RANGES.items():
            value = getattr(self, name)
            optional = name in ("best_of", "seed", "max_tokens", "logprobs", "prompt_logprobs",
                                "truncate_prompt_tokens")
            if not (optional and value is None):
                check_range(name, value, low, high, whole)
        if self.top_p == 0:
            raise InvalidRequestError("top_p is 0; it must be over 0, to 1")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(f"min_tokens is {self.min_tokens}; it must be at most max_tokens, "
                                      f"{self.max_tokens}")
        if max(self.n, self.best_of or 1) > 1 and self.temperature < 1e-5:
            raise InvalidRequestError(f"n or best_of is {max(self.n, self.best_of or 1)}; it must be 1 with "
                                      "temperature 0, since all outputs would be the same")

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)

    def to_native(self, max_tokens: int) -> dict[str, Any]:
        """What the library reads. max_tokens: where there is none here."""
        native = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                  if field.name not in _NOT_NATIVE}
        native["max_tokens"] = max_tokens if self.max_tokens is None else self.max_tokens
        if self.structured_outputs is not None:
            native["structured_outputs"] = self.structured_outputs.to_native()
        if self.logit_bias is not None:  # infinity counts as 100, and JSON has none
            native["logit_bias"] = {str(token): max(-100.0, min(100.0, float(bias))) if bias == bias else bias
                                    for token, bias in self.logit_bias.items()}
        return {name: value for name, value in native.items() if value is not None}


@dataclasses.dataclass
class BeamSearchParams:
    """A search for the likeliest texts. temperature is vLLM's, and must be 0: nothing is sampled."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_range("beam_width", self.beam_width, 1, 512, True)
        check_range("max_tokens", self.max_tokens, 1, 2**31 - 1, True)
        check_range("length_penalty", self.length_penalty, -100, 100)
        check_range("temperature", self.temperature, 0, 0)

    def to_native(self) -> dict[str, Any]:
        return {"beam_width": self.beam_width, "n": self.beam_width, "max_tokens": self.max_tokens,
                "ignore_eos": self.ignore_eos, "length_penalty": self.length_penalty,
                "include_stop_str_in_output": self.include_stop_str_in_output}


def _field_names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


named_arguments(_field_names(SamplingParams), _IGNORED)(SamplingParams)
named_arguments(_field_names(BeamSearchParams), {})(BeamSearchParams)
named_arguments(_field_names(StructuredOutputsParams), {"disable_fallback": False, "backend": None})(
    StructuredOutputsParams)
