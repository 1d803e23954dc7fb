"""Messages as chat templates read them."""

from __future__ import annotations

import json
import weakref
from typing import Any, Mapping, Optional, Sequence

from . import _native
from .exceptions import InvalidRequestError, QuireError

_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")


def _read_content(content: Any, where: str) -> str:
    """A text; parts of type text are joined by line breaks, as vLLM does."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, (list, tuple)) else [content]:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(f"{where}.content has a part of type {kind!r}; it may be a text, or parts of "
                                      "type 'text'")
        texts.append(text)
    return "\n".join(texts)


def _read_call(call: Any, where: str) -> dict[str, Any]:
    """A tool call whose arguments are an object, which is what templates expect."""
    read: dict[str, Any] = dict(call)
    function = dict(read.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            raise InvalidRequestError(f"{where}.tool_calls: the arguments are no JSON: {arguments[:80]!r}") from None
    read["function"] = function
    return read


def read_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    result = []
    for i, given in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
            raise InvalidRequestError(f"{where} is no message: it needs a role, and content")
        message = {key: value for key, value in given.items() if value is not None}
        message["content"] = _read_content(given.get("content"), where)
        if message.get("tool_calls"):
            message["tool_calls"] = [_read_call(call, where) for call in message["tool_calls"]]
        result.append(message)
    return result


# By engine and template, once they have been asked for.
_parts_wanted: weakref.WeakKeyDictionary[_native.Handle, dict[Optional[str], bool]] = weakref.WeakKeyDictionary()


def _wants_parts(engine: _native.Handle, chat_template: Optional[str]) -> bool:
    """Whether a template shows the content of a message only where it is a list of parts."""
    known = _parts_wanted.setdefault(engine, {})
    if chat_template not in known:
        known[chat_template] = _find_whether_it_wants_parts(engine, chat_template)
    return known[chat_template]


def _find_whether_it_wants_parts(engine: _native.Handle, chat_template: Optional[str]) -> bool:

    def shows(content: Any) -> bool:
        context = {"messages": [{"role": "user", "content": content}], "add_generation_prompt": False}
        try:
            return "needle" in _native.render_chat_text(engine, context, chat_template)
        except QuireError:
            return False

    return not shows("needle") and shows([{"type": "text", "text": "needle"}])


def make_context(engine: _native.Handle, messages: Sequence[Any], tools: Optional[Sequence[dict[str, Any]]],
                 chat_template: Optional[str], add_generation_prompt: bool, continue_final_message: bool,
                 variables: Mapping[str, Any]) -> tuple[dict[str, Any], Optional[str]]:
    """What a template reads, and the text behind which the prompt ends, if it goes on with the last message."""
    for name in variables:
        # The model's special tokens are trusted, so a request must not name one.
        if name in _RESERVED or name.endswith("_token"):
            raise InvalidRequestError(f"chat_template_kwargs has {name!r}, which is no variable of its own")
    if add_generation_prompt and continue_final_message:
        raise InvalidRequestError("continue_final_message and add_generation_prompt exclude each other")
    read = read_messages(messages)
    last = read[-1]["content"].strip() if continue_final_message else None
    if last is not None and not last:
        raise InvalidRequestError("continue_final_message needs a last message with text")
    if _wants_parts(engine, chat_template):
        for message in read:
            message["content"] = [{"type": "text", "text": message["content"]}]
    context = {**variables, "messages": read, "add_generation_prompt": add_generation_prompt}
    if tools:
        context["tools"] = list(tools)
    return context, last
