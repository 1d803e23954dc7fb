"""What this package raises, each under the built-in exception that a script would expect."""


class QuireError(Exception):
    """The base of all of them."""


class InvalidRequestError(QuireError, ValueError):
    """A parameter, a prompt, a model or a file is not right: the message says what would be."""


class EngineError(QuireError, RuntimeError):
    """The engine cannot go on, or is closed."""


class QueueFullError(EngineError):
    """So many requests wait that this one was not taken; later it may be."""


class ForkError(EngineError):
    """The engine was started before the process was forked: its threads are the parent's."""
