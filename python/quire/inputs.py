"""What a prompt may be: a text, {"prompt": text}, token ids, or {"prompt_token_ids": ids}."""

from __future__ import annotations

from typing import Any, Optional, Sequence, TypedDict, Union

from .exceptions import InvalidRequestError


class _Salted(TypedDict, total=False):
    cache_salt: str  # only prompts of equal salt share cached prefixes


class TextPrompt(_Salted):
    """A text, in which special tokens are recognised."""

    prompt: str


class _MaybeText(_Salted, total=False):
    prompt: str  # what the ids are of; it is only given back


class TokensPrompt(_MaybeText):
    """Token ids, [length]."""

    prompt_token_ids: list[int]


PromptType = Union[str, TextPrompt, TokensPrompt, Sequence[int]]


class Prompt:
    """A prompt as it was given."""

    def __init__(self, text: Optional[str], ids: Optional[list[int]], salt: str) -> None:
        self.text, self.ids, self.salt = text, ids, salt


_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


def read_prompt(given: Any) -> Prompt:
    if isinstance(given, str):
        return Prompt(given, None, "")
    if isinstance(given, dict):
        unknown = [key for key in given if key not in _KEYS and given[key] is not None]
        if unknown:
            raise InvalidRequestError(f"a prompt has {unknown[0]!r}, which is not supported; it may have "
                                      f"{', '.join(_KEYS)}")
        text, ids, salt = given.get("prompt"), given.get("prompt_token_ids"), given.get("cache_salt") or ""
        if isinstance(text, str) or (ids is not None and text is None):
            return Prompt(text, None if ids is None else list(ids), salt)
    elif isinstance(given, (list, tuple)) and all(isinstance(part, int) for part in given):
        return Prompt(None, list(given), "")
    raise InvalidRequestError("a prompt is a text, a list of token ids, or a dict with prompt or prompt_token_ids; "
                              f"this is {type(given).__name__}")


def read_prompts(given: Any) -> list[Prompt]:
    """One prompt or several."""
    is_one = isinstance(given, (str, dict)) or (
        isinstance(given, (list, tuple)) and len(given) > 0 and isinstance(given[0], int))
    return [read_prompt(given)] if is_one else [read_prompt(one) for one in given]
