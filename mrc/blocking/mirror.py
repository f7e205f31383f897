# SPDX-License-Identifier: Apache-2.0
"""Makes the classes and functions of `mrc.blocking` from those of `mrc`.

By its declaration a call of `mrc` waits (`async def`), opens (`-> Opening[...]`), iterates
(`-> AsyncIterator[...]`), posts (`-> asyncio.Future[...]`), or does none of these. So is its mirror
made. Objects that cross the border are wrapped or unwrapped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future as ThreadFuture
from enum import Enum
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, ModuleType, TracebackType
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

from mrc.blocking.loop import CallerLoop

_OPERATORS = ("__getitem__", "__len__", "__bytes__")


class Call(Enum):
    """What a call of `mrc` does."""

    WAIT = "async def"
    OPEN = "Opening["
    ITERATE = "AsyncIterator["
    POST = "asyncio.Future["
    DO = ""


def kind_of(function: Any) -> Call:
    """By its declaration."""
    if inspect.iscoroutinefunction(function):
        return Call.WAIT
    returned = str(inspect.signature(function).return_annotation)
    for kind in (Call.OPEN, Call.ITERATE, Call.POST):
        if returned.startswith(kind.value):
            return kind
    return Call.DO


def members_of(kind: type) -> dict[str, Any]:
    """The declarations of a class that its mirror has too, by name."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        if base.__module__.startswith("mrc."):
            found |= {name: each for name, each in vars(base).items()
                      if not name.startswith("_") or name in _OPERATORS}  # fmt: skip
    return {name: each for name, each in found.items() if isinstance(each, FunctionType | property)}


def waits(kind: type) -> bool:
    """Whether a class has calls that wait, so that it needs a mirror."""
    return (
        kind.__module__.startswith("mrc.")
        and not issubclass(kind, BaseException | Enum)
        and not inspect.isabstract(kind)
        and any(
            isinstance(each, FunctionType) and kind_of(each) is not Call.DO
            for each in members_of(kind).values()
        )
    )


# ---- Objects ------------------------------------------------------------------------------------


class Blocking:
    """Base of the mirrors: an object of `mrc` that lives in the loop. `with` closes it."""

    _mirrors: ClassVar[WeakValueDictionary[int, Blocking]] = WeakValueDictionary()
    __slots__ = ("__weakref__", "_aio", "_loop")

    def __init__(self, loop: CallerLoop, aio: Any) -> None:
        self._loop = loop
        self._aio = aio
        self._mirrors[id(aio)] = self

    def __repr__(self) -> str:
        return repr(self._aio)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.forked:  # otherwise it belongs to the parent
            self._loop.wait(self._aio.__aexit__(kind, error, traceback))
            self._loop.rest()


class Items(Iterator[Any]):
    """What an `async for` gets; a time-out leaves it usable."""

    # Not a generator: a generator ends for good with the first error.
    def __init__(self, loop: CallerLoop, items: AsyncIterator[Any]) -> None:
        self._loop = loop
        self._items = items

    def __next__(self) -> Any:
        async def step() -> Any:
            return await anext(self._items)

        try:
            return wrapped(self._loop, self._loop.wait(step()))
        except StopAsyncIteration:
            raise StopIteration from None


class Future(ThreadFuture[Any]):
    """What a `post` returns. Waiting for it runs the loop."""

    def __init__(self, loop: CallerLoop, of: asyncio.Future[Any]) -> None:
        super().__init__()
        self._loop = loop
        self._of = of
        of.add_done_callback(self._on_done)

    def _on_done(self, of: asyncio.Future[Any]) -> None:
        if of.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif (error := of.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(of.result())

    def cancel(self) -> bool:
        return self._loop.do(self._of.cancel)

    def result(self, timeout: float | None = None) -> Any:
        self._until_done(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._until_done(timeout)
        return super().exception(0)

    def _until_done(self, timeout: float | None) -> None:
        if not self.done():
            self._loop.wait(_until(self._of, timeout))


async def _until(of: asyncio.Future[Any], timeout: float | None) -> None:
    await asyncio.wait((of,), timeout=timeout)
    if not of.done():
        raise TimeoutError(f"not done within {timeout} s")
    await asyncio.sleep(0)  # its callback runs


def wrapped(loop: CallerLoop, value: Any) -> Any:
    """A result for a caller that blocks."""
    kind = type(value)
    if isinstance(value, tuple):
        items = [wrapped(loop, each) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return kind._make(items) if hasattr(kind, "_make") else tuple(items)
    if isinstance(value, Mapping) and kind.__module__.startswith("mrc."):
        return {key: wrapped(loop, each) for key, each in value.items()}
    mirror = mirror_of(kind)
    if mirror is None:
        return value
    found = Blocking._mirrors.get(id(value))
    return mirror(loop, value) if found is None else found


def bare(value: Any) -> Any:
    """An argument for `mrc`."""
    if isinstance(value, Blocking):
        return value._aio
    if type(value) in (list, tuple):
        return type(value)(map(bare, value))
    return value


# ---- Calls --------------------------------------------------------------------------------------


def bound(loop: CallerLoop, kind: Call, call: Callable[..., Any]) -> Any:
    """Runs a call of `mrc` with its arguments, in the way of its kind."""
    match kind:
        case Call.WAIT | Call.OPEN:
            return wrapped(loop, loop.wait(_awaited(call)))
        case Call.ITERATE:
            return Items(loop, loop.do(call))
        case Call.POST:
            return loop.do(lambda: Future(loop, call()))
        case Call.DO:
            return wrapped(loop, loop.do(call))


async def _awaited(call: Callable[..., Any]) -> Any:
    return await call()


def function(of: Callable[..., Any], loop_of: Callable[..., CallerLoop]) -> Callable[..., Any]:
    """The mirror of a function or of a method."""
    kind = kind_of(of)

    @wraps(of)
    def mirror(*args: Any, **options: Any) -> Any:
        loop = loop_of(*args)
        plain = [bare(each) for each in args]
        named = {name: bare(each) for name, each in options.items()}
        return bound(loop, kind, lambda: of(*plain, **named))

    mirror.__signature__ = signature_of(of)  # type: ignore[attr-defined]
    return mirror


def signature_of(of: Callable[..., Any]) -> inspect.Signature:
    """That of the mirror of a call."""
    signature = inspect.signature(of)
    returned = str(signature.return_annotation)
    if returned.startswith(Call.OPEN.value):
        returned = returned[len(Call.OPEN.value) : -1]
    returned = returned.replace(Call.ITERATE.value, "Iterator[").replace("asyncio.", "")
    return signature.replace(return_annotation=returned)


_made: dict[type, type[Blocking] | None] = {}


def mirror_of(kind: type) -> type[Blocking] | None:
    """The mirror of a class; None if it needs none, for nothing in it waits."""
    if kind not in _made:
        _made[kind] = _make(kind) if waits(kind) else None
    return _made[kind]


def _make(kind: type) -> type[Blocking]:
    members: dict[str, Any] = {
        "__doc__": kind.__doc__, "__module__": "mrc.blocking", "__slots__": (),
    }  # fmt: skip
    for name, each in members_of(kind).items():
        if isinstance(each, property):
            members[name] = property(_getter(each), doc=each.__doc__)
        elif name in _OPERATORS:
            members[name] = _operator(each)
        else:
            members[name] = function(each, lambda self, *_: self._loop)
    for base in kind.__mro__:
        if "__aiter__" in vars(base):
            members["__iter__"] = lambda self: Items(self._loop, aiter(self._aio))
    return type(kind.__name__, (Blocking,), members)


def _getter(of: property) -> Callable[[Blocking], Any]:
    get = of.fget
    assert get is not None
    return lambda self: wrapped(self._loop, get(self._aio))


def _operator(of: Callable[..., Any]) -> Callable[..., Any]:
    """It neither waits nor touches the loop."""
    return wraps(of)(lambda self, *args: of(self._aio, *args))


def names(of: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module here: the names of a module of `mrc`, for those who block. A
    name of which nothing waits is the very same thing.
    """
    here = of.replace("mrc", "mrc.blocking", 1)

    def load(name: str) -> Any:
        module = import_module(of)
        if (name.startswith("_") and name != "__all__") or not hasattr(module, name):
            raise AttributeError(f"module {here!r} has no attribute {name!r}")
        value = getattr(module, name)
        if isinstance(value, ModuleType) and find_spec(f"mrc.blocking.{name}") is not None:
            value = import_module(f"mrc.blocking.{name}")
        elif isinstance(value, type):
            value = mirror_of(value) or value
        elif isinstance(value, FunctionType) and kind_of(value) is not Call.DO:
            value = function(value, lambda *_: CallerLoop.current())
        setattr(import_module(here), name, value)
        return value

    return load
