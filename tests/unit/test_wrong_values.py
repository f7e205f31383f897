# SPDX-License-Identifier: Apache-2.0
"""Wrong values of every field of every configuration, and of arguments: each ends in one line that
begins with its name, and in no object. What is made can be copied, pickled and changed.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from ipaddress import ip_address, ip_interface
from pathlib import Path
from types import UnionType
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, structs

import mrc
from mrc import enums, errors, events
from mrc.connect.identity import fresh
from mrc.connect.profiles import CcSettings, EvSelection
from mrc.connect.security import Commands
from mrc.enums import Reading
from mrc.errors import NetlinkError
from mrc.fabric.hostconfig import HostPath, HostPeer, HostPort
from mrc.linux.secret import Secret

HUGE = 1 << 70
SECRET = bytes(range(32))
PEER = "mrc:SHA256:" + "A" * 43
PORT = HostPort("eth1", ip_interface("10.0.0.1/24"), 1500)
PATH = HostPath(1, "t1:1.0", ip_address("10.0.1.2"))
HOST = HostPeer("h1", "10.0.0.2", (ip_address("10.0.1.1"),), (PATH,))


async def asks(*_: str) -> Any:
    raise AssertionError("nobody asks")


MADE: list[Any] = [
    mrc.config.CcParameters(base_rtt_ns=20_000),
    mrc.config.Retries(linear=3),
    mrc.config.Queues(mpr=256),
    mrc.config.Spraying(mtu_limit=1024),
    mrc.config.TrafficClasses(data=8),
    mrc.config.Sockets(engines=2),
    mrc.config.Limits(max_qps=7),
    mrc.config.Timeouts(hello=3),
    Commands("mrc recv", "mrc send"),
    mrc.Authority(Path("ca"), Path("cert"), Path("key")),
    mrc.Security(peer=PEER, allow=(PEER,), secret=SECRET, code="acid-acorn-actor", ask=asks),
    EvSelection(paths=("t1:*",), planes=(1, 2)),
    CcSettings(mrc.CcKind.NSCC, mrc.config.CcParameters(base_rtt_ns=20_000)),
    PORT,
    PATH,
    HOST,
    mrc.HostConfig("h0", mrc.HostConfig.Source.SRV6, (PORT,), {"h1": HOST}),
    mrc.ContextConfig(interfaces=("eth1", "10.0.0.1:backup"), metrics=("::1", 0), name="h0"),
]
BY_NAME = {type(each).__name__: each for each in MADE}


def fields(made: Any) -> Iterator[tuple[str, Any]]:
    """Name and declared type of each field."""
    hints = typing.get_type_hints(type(made), include_extras=True)
    has: Any = structs.fields(made) if isinstance(made, Struct) else dataclasses.fields(made)
    return ((each.name, hints[each.name]) for each in has)


def changed(made: Any, **values: Any) -> Any:
    """A copy with other fields."""
    replace: Any = structs.replace if isinstance(made, Struct) else dataclasses.replace
    return replace(made, **values)


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [HUGE, -HUGE, math.nan, math.inf, -math.inf, 1.0, b"", {}, [], object, int, 1j]
    )
    | st.floats()
    | st.text(max_size=400)
    | st.sampled_from(["\ud800", "\udc80", "\0", "a\nb", "x" * 300])
    | st.sampled_from(
        [*enums.CcKind, *enums.Seal, mrc.config.Queues(), PORT, lambda: None, Path("x")]
    )
    | st.lists(st.text() | st.integers() | st.none(), max_size=3)
    | st.lists(st.text() | st.integers(), max_size=3).map(tuple)
    | st.dictionaries(st.text(), st.integers(), max_size=2)
    | st.binary(max_size=40)
)


def is_of(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type, but for the rules between fields."""
    if isinstance(hint, UnionType):
        return any(is_of(value, part) for part in typing.get_args(hint))
    bounds: list[Meta] = []
    if typing.get_origin(hint) is Annotated:
        hint, *bounds = typing.get_args(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        fits = isinstance(value, tuple) and (
            all(is_of(each, parts[0]) for each in value)
            if parts[1] is ...
            else len(value) == len(parts) and all(map(is_of, value, parts))
        )
    elif origin is dict:
        fits = isinstance(value, dict) and all(is_of(each, parts[1]) for each in value.values())
    elif origin is typing.Literal:
        fits = value in parts
    elif origin is Callable or origin is typing.get_origin(Callable[[], None]):
        fits = callable(value)
    elif hint is float:
        fits = type(value) in (int, float) and math.isfinite(value)
    elif hint in (int, bool):
        fits = type(value) is hint
    else:
        fits = isinstance(value, hint or type(None))
    size: Any = len(value) if fits and isinstance(value, str | tuple) else value
    return fits and all(
        (each.ge is None or value >= each.ge)
        and (each.gt is None or value > each.gt)
        and (each.le is None or value <= each.le)
        and (each.multiple_of is None or value % each.multiple_of == 0)
        and (each.min_length is None or size >= each.min_length)
        and (each.max_length is None or size <= each.max_length)
        for each in bounds
    )


@pytest.mark.parametrize("name", BY_NAME)
@given(data=st.data())
def test_field__a_wrong_value_is_refused_by_name(name: str, data: st.DataObject) -> None:
    made = BY_NAME[name]
    field, hint = data.draw(st.sampled_from(list(fields(made))))
    value = data.draw(ANYTHING)
    try:
        found = changed(made, **{field: value})
    except errors.MrcError as error:
        assert isinstance(error, mrc.ConfigError)
        (line,) = str(error).splitlines()
        assert len(line) < 500
        assert line.startswith(field) or not is_wrong(value, hint)
    else:
        assert is_of(getattr(found, field), hint)
        assert not is_wrong(value, hint)


def is_wrong(value: Any, hint: Any) -> bool:
    """Whether no rule makes a value of this type from it."""
    return not is_of(tuple(value) if isinstance(value, list) else value, hint)


def test_field__secrets_are_not_in_errors() -> None:
    for wrong in ({"secret": "hunter2"}, {"secret": [b"hunter2"]}, {"code": b"hunter2"}):
        with pytest.raises(mrc.ConfigError) as caught:
            mrc.Security(**wrong)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", BY_NAME)
def test_field__repr_copy_and_pickle(name: str) -> None:
    made = BY_NAME[name]
    if isinstance(made, mrc.Security):
        made = changed(made, ask=None)  # a function of this test, which nobody can pickle
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is type(made)
        assert again == made


def test_repr__shows_no_secrets() -> None:
    security = BY_NAME["Security"]
    identity = fresh()
    whole = repr([security, mrc.ContextConfig(security=security), security.shared, identity])
    for secret in ("acid", repr(SECRET)[2:-1], SECRET.hex(), "PRIVATE KEY"):
        assert secret not in whole


SEQUENCES: list[tuple[Any, dict[str, Any]]] = [
    (mrc.ContextConfig, {"interfaces": ["eth1", "eth2"]}),
    (EvSelection, {"planes": range(1, 3)}),
    (mrc.Security, {"allow": [PEER]}),
]


@pytest.mark.parametrize(("kind", "given"), SEQUENCES)
def test_field__a_sequence_becomes_a_tuple(kind: Any, given: dict[str, Any]) -> None:
    ((field, value),) = given.items()
    assert getattr(kind(**given), field) == tuple(value)


def test_field__whole_numbers_of_other_libraries_are_ints() -> None:
    class Number:
        def __index__(self) -> int:
            return 7

    queues = mrc.config.Queues(sq_depth=Number())  # type: ignore[arg-type]
    assert type(queues.sq_depth) is int
    assert queues.sq_depth == 7


# ---- Arguments of functions without a Context ----------------------------------------------------


NOTHING = None  # no value that is drawn can be used
TEXTS = tuple[Annotated[str, Meta(min_length=1)], ...]
SIZE = Annotated[int, Meta(ge=0, le=1 << 20)]
CALLS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "load_secret": (mrc.load_secret, "path", NOTHING),
    "HostConfig.read": (mrc.HostConfig.read, "path", NOTHING),
    "Secret": (Secret, "size", SIZE),
    "Secret.random": (Secret.random, "size", SIZE),
    "Secret.copy": (Secret.copy, "data", bytes),
    "Secret.take": (Secret.take, "data", bytes),
    "Identity.path": (lambda value: mrc.Identity(value, Secret(1)), "path", NOTHING),
    "Identity.text": (lambda value: mrc.Identity(Path("x"), value), "text", NOTHING),
    "EvProfile.name": (mrc.EvProfile, "name", str),
    "EvProfile.paths": (lambda value: mrc.EvProfile("p", paths=value), "paths", TEXTS),
    "EvProfile.denied": (lambda value: mrc.EvProfile("p", denied=value), "denied", TEXTS),
    "EvProfile.planes": (
        lambda value: mrc.EvProfile("p", planes=value), "planes",
        tuple[Annotated[int, Meta(ge=1, le=32)], ...],
    ),
    "CcProfile.name": (mrc.CcProfile, "name", str),
    "CcProfile.kind": (lambda value: mrc.CcProfile("p", value), "kind", mrc.CcKind),
    "CcProfile.parameters": (
        lambda value: mrc.CcProfile("p", mrc.CcKind.NSCC, value), "parameters",
        mrc.config.CcParameters | None,
    ),
    "RemoteMemory.from_dict": (
        mrc.RemoteMemory.from_dict, "the peer sent a wrong memory description", NOTHING,
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@given(value=ANYTHING)
def test_argument__a_wrong_value_is_named(call: str, value: Any) -> None:
    function, name, hint = CALLS[call]
    try:
        function(value)
    except mrc.MrcError as error:
        (line,) = str(error).splitlines()
        is_path = hint is NOTHING and isinstance(value, str | Path)  # then it names the file
        assert line.startswith(name) or is_path
        assert hint is NOTHING or is_wrong(value, hint) or value in ((), [])
    else:
        assert hint is not NOTHING
        assert not is_wrong(list(value) if isinstance(value, tuple) else value, hint)


# ---- Errors, events and enums --------------------------------------------------------------------


PUBLIC = [getattr(mrc, name) for name in mrc.__all__]
ERRORS = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, BaseException)]
ENUMS = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, Enum)]
RESULTS = [each for each in vars(events).values() if getattr(each, "__module__", "") == "mrc.events"
           and isinstance(each, type) and not each.__name__.startswith("_")]  # fmt: skip


@pytest.mark.parametrize("kind", [*ERRORS, errors.WrongValueError, errors.BadFileError])
def test_error__is_the_same_after_a_pickle(kind: Any) -> None:
    made: Any = (
        kind(mrc.WcStatus.RETRY_EXC_ERR, "write")
        if kind is mrc.CompletionError
        else kind("port: is wrong")
    )
    if kind is mrc.ConnectRefusedError:
        made = kind("the peer refused: no", "no", errors.Kind.WRONG_CODE)
    elif kind is NetlinkError:
        made = kind("cannot", 22)
    made.add_note("a note")
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), made.anew()):
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(made), made.args, vars(made))


@pytest.mark.parametrize("kind", RESULTS)
def test_result__is_equal_after_a_pickle(kind: Any) -> None:
    values = {name: some(hint) for name, hint in typing.get_type_hints(kind).items()}
    made = kind(**values)
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert type(again) is kind
        assert repr(again) == repr(made)
        if kind is not mrc.Ended:  # errors are equal to themselves only
            assert again == made
            assert [getattr(again, name) for name in values] == list(values.values())


def some(hint: Any) -> Any:
    """A value of a declared type."""
    if isinstance(hint, UnionType):
        return some(typing.get_args(hint)[0])
    if typing.get_origin(hint) is tuple:
        return (some(typing.get_args(hint)[0]),)
    if issubclass(hint, Enum):
        return list(hint)[-1]
    if issubclass(hint, Struct):
        return hint(**{name: some(each) for name, each in typing.get_type_hints(hint).items()})
    return hint(7)


@pytest.mark.parametrize("kind", [*ENUMS, mrc.HostConfig.Source])
def test_enum__its_text_is_its_name(kind: Any) -> None:
    for member in kind:
        assert str(member) == f"{member}" == member.name
        assert f"{member:>20}" == f"{member.name:>20}"
        assert pickle.loads(pickle.dumps(member)) is member


def test_reading__unknown_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="Reading"):
        Reading(1 << 20)
