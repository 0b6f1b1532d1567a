"""Every error that a user can cause. The command line prints these in one line; anything else is a bug."""

from __future__ import annotations


class AsyncManifoldError(Exception):
    """The base class of all errors that are not bugs of this library.

    >>> from asyncmanifold import AsyncManifoldError, OrthoDC
    >>> try:
    ...     OrthoDC(threshold=2)
    ... except AsyncManifoldError as error:
    ...     print(error)
    OrthoDC(threshold=2) must be between -1 and 1
    """


class InputError(AsyncManifoldError, ValueError):
    """Wrong input; the message says what is wrong, where, and what is allowed.

    >>> from asyncmanifold import InputError
    >>> issubclass(InputError, ValueError)
    True
    """


class RunError(AsyncManifoldError, RuntimeError):
    """A run that cannot continue; accepted updates are kept, and the run can be resumed.

    >>> from asyncmanifold import RunError
    >>> issubclass(RunError, RuntimeError)
    True
    """


def one_line(problem: BaseException, most: int = 200) -> str:
    """Return an exception as one line, whatever it says."""
    return " ".join(str(problem).split())[:most] or type(problem).__name__
