"""The C interface of libquire_python (src/python/c_api.h). While a call runs, other Python threads do."""

from __future__ import annotations

import array
import ctypes
import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from .exceptions import EngineError, ForkError, InvalidRequestError, QueueFullError

_OK, _INVALID, _QUEUE_FULL, _STOPPED = 0, 1, 2, 3
_POLL = 0.1  # seconds until a KeyboardInterrupt is noticed


class _Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_Progress = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
_POINTER, _BYTES, _SIZE, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.POINTER(_Text)
_FUNCTIONS = {
    "quire_free_text": (None, [_OUT]),
    "quire_find_model": (_INT, [_BYTES, _SIZE, _Progress, _OUT]),
    "quire_engine_new": (_INT, [_BYTES, _SIZE, _Progress, ctypes.POINTER(_POINTER), _OUT]),
    "quire_engine_free": (None, [_POINTER]),
    "quire_engine_info": (_INT, [_POINTER, _OUT]),
    "quire_engine_stats": (_INT, [_POINTER, _OUT]),
    "quire_encode": (_INT, [_POINTER, _BYTES, _SIZE, _INT, _OUT]),
    "quire_decode": (_INT, [_POINTER, _POINTER, _SIZE, _INT, _OUT]),
    "quire_tokens": (_INT, [_POINTER, _POINTER, _SIZE, _OUT]),
    "quire_render_chat": (_INT, [_POINTER, _BYTES, _SIZE, _OUT]),
    "quire_channel_new": (_INT, [_POINTER, ctypes.POINTER(_POINTER), _OUT]),
    "quire_channel_free": (None, [_POINTER]),
    "quire_channel_add": (_INT, [_POINTER, ctypes.c_int64, _BYTES, _SIZE, _POINTER, _SIZE, _OUT]),
    "quire_channel_flush": (_INT, [_POINTER, _OUT]),
    "quire_channel_next": (_INT, [_POINTER, _INT, _OUT]),
    "quire_channel_abort": (_INT, [_POINTER, ctypes.c_int64]),
}


def _folder() -> Path:
    """Where bin/ and lib/ are: beside this file in a wheel, or in the folder that QUIRE_PREFIX names."""
    return Path(os.environ.get("QUIRE_PREFIX") or Path(__file__).resolve().parent)


def program() -> Path:
    """The command line's program."""
    return _folder() / "bin" / "quire"


def _load() -> ctypes.CDLL:
    path = _folder() / "lib" / "libquire_python.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"quire: {error}") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def _take(status: int, out: _Text) -> bytes:
    """What a call has put out; raises what its status stands for."""
    data = ctypes.string_at(out.data, out.size) if out.data else b""
    _library.quire_free_text(ctypes.byref(out))
    if status == _OK:
        return data
    message = data.decode("utf-8", "replace")
    if status == _INVALID:
        raise InvalidRequestError(message)
    if status == _QUEUE_FULL:
        raise QueueFullError(message)
    if status == _STOPPED:
        raise KeyboardInterrupt
    raise EngineError(message)


def _call(name: str, *arguments: Any) -> bytes:
    out = _Text()
    return _take(getattr(_library, name)(*arguments, ctypes.byref(out)), out)


def _dump(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _call_long(name: str, argument: dict[str, Any], progress: Callable[[int, int], None], *more: Any) -> bytes:
    """As _call, of what takes a QuireProgress. It runs on another thread: where Python's code is called from C, a
    KeyboardInterrupt may be raised outside of every `try`. What this thread or `progress` raises ends the call."""
    text = _dump(argument)
    raised: list[BaseException] = []
    found: list[bytes] = []

    def tell(done: int, total: int) -> int:
        try:
            if total and not raised:
                progress(done, total)
        except BaseException as error:
            raised.append(error)
        return len(raised)

    def work() -> None:
        try:
            found.append(_call(name, text, len(text), _Progress(tell), *more))
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    done = threading.Event()  # an interrupted Thread.join of Python 3.11 takes its thread for ended
    thread = threading.Thread(target=work, name="quire-long-call")
    try:
        thread.start()
        while not done.wait(_POLL):
            pass
    except BaseException as error:
        raised.insert(0, error)
        if thread.is_alive():
            done.wait()
    if raised:
        raise raised.pop(0)
    return found[0]


def find_model(source: dict[str, Any], progress: Callable[[int, int], None]) -> str:
    """The directory of a hub id. What `progress` raises stops the download, and is raised."""
    return _call_long("quire_find_model", source, progress).decode()


class Ids:
    """Token ids as C takes them: int32, in a row."""

    def __init__(self, ids: Sequence[int]) -> None:
        try:
            self.ids = array.array("i", ids)
        except (TypeError, OverflowError) as error:
            raise InvalidRequestError(f"token ids are whole numbers of 32 bits: {error}") from None
        self.address, self.count = self.ids.buffer_info()


def _to_ids(data: bytes) -> list[int]:
    ids = array.array("i")
    ids.frombytes(data)
    return ids.tolist()


class _Owned:
    """A pointer of the library's, who uses it, and in which process it was made."""

    def __init__(self, pointer: int, free: str) -> None:
        self.pointer: Optional[int] = pointer
        self.free = free
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.users = 0
        self.closed = False

    def release(self, users: int) -> None:
        """One user fewer, or, with 0, it is to be freed: by whoever is the last."""
        if os.getpid() != self.process:  # where nobody may let the lock go
            return
        with self.lock:
            self.users -= users
            self.closed = self.closed or users == 0
            pointer = self.pointer if self.closed and self.users == 0 else None
            if pointer is not None:
                self.pointer = None
        if pointer is not None:
            getattr(_library, self.free)(pointer)


class Handle:
    """Something of the library's, to be used in a `with`. It is freed once, when it is closed or forgotten or the
    interpreter ends, but not while somebody uses it, and not in a forked child, where its threads are not."""

    def __init__(self, pointer: int, free: str) -> None:
        self._owned = _Owned(pointer, free)
        self._finalizer = weakref.finalize(self, self._owned.release, 0)

    def __enter__(self) -> int:
        owned = self._owned
        if os.getpid() != owned.process:
            raise ForkError("the engine was started before this process was forked from another; "
                            "start it in the child, or use multiprocessing's method 'spawn'")
        with owned.lock:
            if owned.closed or owned.pointer is None:
                raise EngineError("the engine is closed")
            owned.users += 1
            return owned.pointer

    def __exit__(self, *_: object) -> None:
        self._owned.release(1)

    @property
    def closed(self) -> bool:
        return self._owned.closed

    def close(self) -> None:
        self._finalizer()


def new_engine(config: dict[str, Any]) -> Handle:
    """A KeyboardInterrupt ends the loading, and its memory is given back."""
    pointer = _POINTER()
    try:
        _call_long("quire_engine_new", config, lambda done, total: None, ctypes.byref(pointer))
    except BaseException:
        if pointer.value is not None:  # it was too late to end it
            _library.quire_engine_free(pointer)
        raise
    assert pointer.value is not None
    return Handle(pointer.value, "quire_engine_free")


def _call_on(handle: Handle, name: str, *arguments: Any) -> bytes:
    with handle as pointer:
        return _call(name, pointer, *arguments)


def info(engine: Handle) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(_call_on(engine, "quire_engine_info"))
    return result


def stats(engine: Handle) -> dict[str, float]:
    result: dict[str, float] = json.loads(_call_on(engine, "quire_engine_stats"))
    return result


def encode(engine: Handle, text: str, add_special_tokens: bool) -> list[int]:
    data = text.encode("utf-8", "replace")
    return _to_ids(_call_on(engine, "quire_encode", data, len(data), int(add_special_tokens)))


def decode(engine: Handle, ids: Sequence[int], skip_special_tokens: bool) -> str:
    taken = Ids(ids)
    data = _call_on(engine, "quire_decode", taken.address, taken.count, int(skip_special_tokens))
    return data.decode("utf-8", "replace")


def tokens(engine: Handle, ids: Sequence[int]) -> list[Optional[str]]:
    """How the tokenizer's file spells these tokens; None for an id without one."""
    taken = Ids(ids)
    result: list[Optional[str]] = json.loads(_call_on(engine, "quire_tokens", taken.address, taken.count))["tokens"]
    return result


def _render_chat(engine: Handle, context: dict[str, Any], chat_template: Optional[str], cut_after: Optional[str],
                 tokenize: bool, of_pair: bool = False) -> bytes:
    try:
        text = _dump({"context": context, "chat_template": chat_template, "cut_after": cut_after,
                      "tokenize": tokenize, "of_pair": of_pair})
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the messages, tools or chat_template_kwargs are no JSON: {error}") from None
    return _call_on(engine, "quire_render_chat", text, len(text))


def render_chat_text(engine: Handle, context: dict[str, Any], chat_template: Optional[str] = None,
                     cut_after: Optional[str] = None) -> str:
    return _render_chat(engine, context, chat_template, cut_after, False).decode("utf-8", "replace")


def render_chat_ids(engine: Handle, context: dict[str, Any], chat_template: Optional[str] = None,
                    cut_after: Optional[str] = None) -> list[int]:
    return _to_ids(_render_chat(engine, context, chat_template, cut_after, True))


def render_pair_ids(engine: Handle, context: dict[str, Any]) -> list[int]:
    """The prompt of a classifier that judges pairs: messages of the roles query and document."""
    return _to_ids(_render_chat(engine, context, None, None, True, of_pair=True))


class Channel:
    """Requests of one caller, and what comes of them."""

    def __init__(self, engine: Handle) -> None:
        pointer = _POINTER()
        with engine as of:
            _call("quire_channel_new", of, ctypes.byref(pointer))
        assert pointer.value is not None
        self._handle = Handle(pointer.value, "quire_channel_free")

    def add(self, tag: int, request: bytes, prompt: Sequence[int]) -> None:
        """Holds a request, which is what `pack_request` made, until `flush` submits all of them or none."""
        taken = Ids(prompt)
        _call_on(self._handle, "quire_channel_add", tag, request, len(request), taken.address, taken.count)

    def flush(self) -> None:
        _call_on(self._handle, "quire_channel_flush")

    def next(self, milliseconds: int) -> list[dict[str, Any]]:
        """What has come since, or within that time."""
        data = _call_on(self._handle, "quire_channel_next", milliseconds)
        events: list[dict[str, Any]] = json.loads(data) if data else []
        return events

    def abort(self, tag: int = -1) -> None:
        """Ends one request, or all."""
        with self._handle as pointer:
            _library.quire_channel_abort(pointer, tag)

    def close(self) -> None:
        self._handle.close()


def pack_request(params: dict[str, Any], options: dict[str, Any], stream: bool) -> bytes:
    try:
        return _dump({"params": params, "options": options, "stream": stream})
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the parameters have what is no number or text: {error}") from None
