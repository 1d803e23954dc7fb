"""A model for asyncio: each request is an async generator."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import weakref
from types import TracebackType
from typing import Any, AsyncGenerator, Mapping, Optional, Sequence

from . import _native
from ._arguments import refuse_unsupported
from ._engine import EngineCore
from .exceptions import EngineError, InvalidRequestError
from .inputs import Prompt, PromptType, read_prompt
from .outputs import CompletionOutput, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams
from .tokenizer import Tokenizer

_Events = asyncio.Queue[Optional[dict[str, Any]]]


class _Pump:
    """The thread that takes what comes of requests to the event loops that wait for it."""

    def __init__(self, engine: _native.Handle) -> None:
        self._channel = _native.Channel(engine)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, _Events]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="quire", daemon=True)
        self._thread.start()

    def submit(self, tag: int, request: bytes, prompt: Sequence[int], events: _Events) -> None:
        with self._lock:
            if self._stopped:
                raise EngineError("the engine is closed")
            self._waiting[tag] = (asyncio.get_running_loop(), events)
            try:
                self._channel.add(tag, request, prompt)
                self._channel.flush()
            except BaseException:
                del self._waiting[tag]
                raise

    def abort(self, tag: int) -> None:
        if not self._stopped:
            self._channel.abort(tag)

    def forget(self, tag: int) -> None:
        """Ends it, if it has not, and tells nobody."""
        with self._lock:
            running = self._waiting.pop(tag, None) is not None
        if running:
            self.abort(tag)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._channel.close()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for loop, events in waiting.values():
            self._tell(loop, events, None)

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop, events: _Events, event: Optional[dict[str, Any]]) -> bool:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _run(self) -> None:
        while not self._stopped:
            for event in self._channel.next(100):
                tag = event["tag"]
                with self._lock:
                    waiter = self._waiting.pop(tag, None) if event["finished"] else self._waiting.get(tag)
                if waiter is not None and not self._tell(*waiter, event):
                    self.forget(tag)


class _Stream:
    """What a request has yielded so far."""

    def __init__(self, request_id: str, prompt: Optional[str], ids: list[int], params: SamplingParams) -> None:
        self.request_id, self.prompt, self.ids, self.params = request_id, prompt, ids, params
        self._so_far: dict[int, CompletionOutput] = {}

    def add(self, piece: CompletionOutput) -> Optional[RequestOutput]:
        before = self._so_far.get(piece.index)
        if before is None:
            whole = piece
        else:
            logprobs = None if piece.logprobs is None else [*(before.logprobs or ()), *piece.logprobs]
            whole = dataclasses.replace(piece, text=before.text + piece.text, logprobs=logprobs,
                                        token_ids=before.token_ids + piece.token_ids)
        self._so_far[piece.index] = whole
        kind = self.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY:
            return None
        shown = piece if kind is RequestOutputKind.DELTA else whole
        return RequestOutput(self.request_id, self.prompt, self.ids, [shown], False)

    def end(self, output: RequestOutput) -> RequestOutput:
        if self.params.output_kind is RequestOutputKind.DELTA:
            output.outputs = [self._new_of(one) for one in output.outputs]
        return output

    def _new_of(self, one: CompletionOutput) -> CompletionOutput:
        before = self._so_far.get(one.index)
        if before is None:
            return one
        logprobs = None if one.logprobs is None else one.logprobs[len(before.logprobs or ()):]
        return dataclasses.replace(one, text=one.text[len(before.text):], logprobs=logprobs,
                                   token_ids=one.token_ids[len(before.token_ids):])


class AsyncLLM:
    """A loaded model, with the arguments of `LLM`. Usable from several event loops and threads at once."""

    def __init__(self, model: str = "", **kwargs: Any) -> None:
        self._core = EngineCore("AsyncLLM", {"model": model, **kwargs})
        self._pump = _Pump(self._core.handle)
        self._numbers = itertools.count()
        self._tags: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, self._pump.stop)

    def generate(self, prompt: PromptType, sampling_params: Optional[SamplingParams] = None,
                 request_id: Optional[str] = None, lora_request: None = None, *, priority: int = 0,
                 timeout: Optional[float] = None) -> AsyncGenerator[RequestOutput, None]:
        """Continues a prompt. Yields as `sampling_params.output_kind` says: each time all so far, or what is new,
        or the end alone. The last one has `finished`. A generator that is closed or cancelled ends its request."""
        refuse_unsupported("AsyncLLM.generate", {"lora_request": lora_request}, {})
        return self._stream(read_prompt(prompt), sampling_params, request_id, priority, timeout)

    def chat(self, messages: Sequence[Mapping[str, Any]], sampling_params: Optional[SamplingParams] = None,
             request_id: Optional[str] = None, *, chat_template: Optional[str] = None,
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Optional[Sequence[dict[str, Any]]] = None,
             chat_template_kwargs: Optional[Mapping[str, Any]] = None, priority: int = 0,
             timeout: Optional[float] = None) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation, as `LLM.chat` and `generate` do."""
        ids = self._core.tokenizer.apply_chat_template(
            messages, tools, chat_template=chat_template, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, **dict(chat_template_kwargs or {}))
        return self._stream(Prompt(None, ids, ""), sampling_params, request_id, priority, timeout)

    async def abort(self, request_id: str) -> None:
        """Ends a request: its generator yields what there is, with finish_reason "abort"."""
        tag = self._tags.get(request_id)
        if tag is not None:
            self._pump.abort(tag)

    def get_tokenizer(self) -> Tokenizer:
        return self._core.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return self._core.default_params()

    @property
    def info(self) -> dict[str, Any]:
        """As LLM.info."""
        return dict(self._core.info)

    def shutdown(self) -> None:
        """Ends what is unfinished and gives the memory back; so does forgetting the object. Generators that wait
        raise EngineError."""
        self._finalizer()
        self._core.handle.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    async def _stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams], request_id: Optional[str],
                      priority: int, timeout: Optional[float]) -> AsyncGenerator[RequestOutput, None]:
        params = self._core.default_params() if sampling_params is None else sampling_params
        ids = self._core.prompt_ids(prompt, 1, 0 if params.max_tokens == 0 else 1, params.truncate_prompt_tokens)
        options = {"priority": priority, "timeout": timeout, "cache_salt": prompt.salt}
        tag = next(self._numbers)
        request_id = str(tag) if request_id is None else request_id
        if request_id in self._tags:
            raise InvalidRequestError(f"there is a request {request_id!r} that has not finished")
        events: _Events = asyncio.Queue()
        stream = _Stream(request_id, prompt.text, ids, params)
        streams = params.output_kind is not RequestOutputKind.FINAL_ONLY
        self._pump.submit(tag, self._core.pack(params, options, streams), ids, events)
        self._tags[request_id] = tag
        try:
            while True:
                event = await events.get()
                if event is None:
                    raise EngineError("the engine is closed")
                if event["finished"]:
                    yield stream.end(self._core.read_output(request_id, prompt.text, event, params))
                    return
                output = stream.add(self._core.read_piece(event, params))
                if output is not None:
                    yield output
        finally:
            self._tags.pop(request_id, None)
            self._pump.forget(tag)
