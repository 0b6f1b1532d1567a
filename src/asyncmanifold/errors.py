"""Every error that a user can cause. The command line prints these in one line; anything else is a bug."""

from __future__ import annotations


class AsyncManifoldError(Exception):
    """The root of all errors that are not bugs of this library.

    >>> from asyncmanifold import AsyncManifoldError, OrthoDC
    >>> try:
    ...     OrthoDC(threshold=2)
    ... except AsyncManifoldError as error:
    ...     print(error)
    OrthoDC(threshold=2) must be between -1 and 1
    """


class InputError(AsyncManifoldError, ValueError):
    """Something that was given is wrong; the message says what, where, and what is allowed.

    >>> from asyncmanifold import InputError
    >>> issubclass(InputError, ValueError)
    True
    """


class RunError(AsyncManifoldError, RuntimeError):
    """A run that cannot go on; what was accepted is kept and can be resumed.

    >>> from asyncmanifold import RunError
    >>> issubclass(RunError, RuntimeError)
    True
    """
