"""A model's own tokenizer, with the methods of transformers' that scripts use."""

from __future__ import annotations

from typing import Any, Literal, Optional, Sequence, Union, overload

from . import _chat, _native
from ._arguments import refuse_unsupported
from .exceptions import InvalidRequestError

# Arguments of transformers' apply_chat_template, and what they may be: any other is a variable of the template.
_UNSUPPORTED: dict[str, Any] = {"padding": False, "truncation": False, "max_length": None, "return_tensors": None,
                                "return_dict": False, "return_assistant_tokens_mask": False, "tokenizer_kwargs": None}


class Tokenizer:
    """Usable from any thread. It keeps its engine alive."""

    def __init__(self, engine: _native.Handle, info: dict[str, Any]) -> None:
        self._engine = engine
        self._info = info
        self._texts: dict[int, str] = {}

    @property
    def vocab_size(self) -> int:
        """Of the model: as many ids as its logits have."""
        return int(self._info["vocab_size"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def eos_token_ids(self) -> list[int]:
        """Whatever ends an answer."""
        return list(self._info["eos_token_ids"])

    @property
    def eos_token_id(self) -> Optional[int]:
        ids = self.eos_token_ids
        return ids[0] if ids else None

    @property
    def eos_token(self) -> Optional[str]:
        token = self.eos_token_id
        return None if token is None else self.convert_ids_to_tokens([token])[0]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, in which special tokens are recognised."""
        return _native.encode(self._engine, text, add_special_tokens)

    def decode(self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return _native.decode(self._engine, ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def __call__(self, text: Union[str, Sequence[str]], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids", "attention_mask"}, of one text or of each of a list."""
        one = isinstance(text, str)
        ids = [self.encode(each, add_special_tokens) for each in ([text] if isinstance(text, str) else text)]
        masks = [[1] * len(each) for each in ids]
        return {"input_ids": ids[0] if one else ids, "attention_mask": masks[0] if one else masks}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[Optional[str]]:
        """How the tokenizer's file spells them; None for an id without a token."""
        return _native.tokens(self._engine, ids)

    @overload
    def apply_chat_template(self, conversation: Sequence[Any], tools: Optional[Sequence[dict[str, Any]]] = None, *,
                            chat_template: Optional[str] = None, add_generation_prompt: bool = False,
                            continue_final_message: bool = False, tokenize: Literal[True] = True,
                            **kwargs: Any) -> list[int]: ...

    @overload
    def apply_chat_template(self, conversation: Sequence[Any], tools: Optional[Sequence[dict[str, Any]]] = None, *,
                            chat_template: Optional[str] = None, add_generation_prompt: bool = False,
                            continue_final_message: bool = False, tokenize: Literal[False],
                            **kwargs: Any) -> str: ...

    def apply_chat_template(self, conversation: Sequence[Any], tools: Optional[Sequence[dict[str, Any]]] = None, *,
                            chat_template: Optional[str] = None, add_generation_prompt: bool = False,
                            continue_final_message: bool = False, tokenize: bool = True,
                            **kwargs: Any) -> Union[list[int], str]:
        """A conversation as the model's template spells it: token ids, or with tokenize=False the text. What stands
        in a message never becomes a special token, but the text does not tell: prefer the ids."""
        refuse_unsupported("apply_chat_template", {name: kwargs.pop(name) for name in _UNSUPPORTED if name in kwargs},
                           _UNSUPPORTED)
        if not conversation:
            raise InvalidRequestError("a conversation has at least one message")
        context, cut_after = _chat.make_context(self._engine, conversation, tools, chat_template,
                                                add_generation_prompt, continue_final_message, kwargs)
        if tokenize:
            return _native.render_chat_ids(self._engine, context, chat_template, cut_after)
        return _native.render_chat_text(self._engine, context, chat_template, cut_after)

    def token_text(self, token_id: int) -> str:
        """What one token is alone; remembered."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([token_id])
        return text
