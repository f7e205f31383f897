# SPDX-License-Identifier: Apache-2.0
"""Parses and escapes all text and numbers from peers. Pure.

Text for a terminal, a log, a metric or an error goes through `shown`. JSON goes through `parse`,
which refuses numbers that would overflow in float arithmetic, and then through `mrc.typed`. This
module uses json, not msgspec: msgspec does not limit whole numbers in private data, and refuses
lone surrogates, which represent non-UTF-8 bytes in file names.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from mrc import versions

if TYPE_CHECKING:
    from mrc.fabric.hostconfig import IpAddress

MAX_SHOWN = 300  # characters
_HOST = re.compile(r"[\w.:%-]+")
_MOST_OF_NAME = 64
MAX_WHOLE = (1 << 64) - 1


# ---- Text -----------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Escapes every character of `text` that a terminal would interpret or cannot show.

    These are control characters, line feeds, lone surrogates, and invisible characters that change
    the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def shown(value: object, limit: int = MAX_SHOWN, *, quoted: bool = False) -> str:
    """A value from a peer as one harmless line of at most `limit` characters. `quoted`: as part of
    a line, whose quotation it cannot end.

    For a list or an object this shows only the type: it may be nested too deeply for Python to
    print.
    """
    if not isinstance(value, str):
        scalar = value is None or isinstance(value, (bool, int, float))
        huge = isinstance(value, int) and abs(value) > MAX_WHOLE
        value = str(value) if scalar and not huge else f"({type(value).__name__})"
    line = printable(value[: limit + 1])
    line = line if len(line) <= limit else line[: limit - 3] + "..."
    return '"' + line.replace('"', "'") + '"' if quoted else line


def called(name: str) -> str:
    """The name that a peer gives itself, as part of a line. It is quoted unless it could be that of
    a host: it might be half of a line, and forge a question.
    """
    return name if _HOST.fullmatch(name) else shown(name, _MOST_OF_NAME, quoted=True)


@lru_cache(maxsize=1024)  # each connection needs those of its ends several times
def parse_address(name: str) -> IpAddress:
    """Parses a numeric address. Removes a scope and turns a mapped IPv4 address into IPv4."""
    address = ip_address(name.partition("%")[0])
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


# ---- JSON -----------------------------------------------------------------------------------


def parse(data: bytes | bytearray) -> dict[str, Any]:
    """Parses one JSON object, with numbers of at most 64 bits.

    Raises ValueError; its text completes the sentence "the peer sent a message that is".
    """
    try:
        value = json.loads(
            data, parse_int=_parse_whole, parse_float=_parse_real, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _parse_whole(digits: str) -> int:
    value = int(digits)  # raises ValueError for more than 4300 digits
    return value if abs(value) <= MAX_WHOLE else _refuse(digits)


def _parse_real(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number:.20} is out of range")


# ---- HOST, HOST:PORT and [ADDRESS]:PORT ----------------------------------------------------------


class Destination(NamedTuple):
    """A host to connect to, and its TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST or HOST:PORT, as `host_and_port` takes it."""
        if self.port == versions.TCP_PORT:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def port_number(text: str) -> int:
    """A TCP port from 0 to 65535."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port number (0 to 65535)")
    return int(text)


def host_and_port(text: str) -> Destination:
    """An IPv6 address needs brackets only when a port follows it."""
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        before, colon, port = rest.partition(":")
        if not bracket or before:
            raise ValueError(f"{text!r} is not [ADDRESS] or [ADDRESS]:PORT")
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    if colon and not port:
        raise ValueError(f"{text!r}: the port after ':' is missing")
    if not host:
        raise ValueError(f"{text!r}: the host is missing")
    number = port_number(port) if port else versions.TCP_PORT
    if number == 0:
        raise ValueError(f"{text!r}: port 0 is not a port to connect to")
    return Destination(host, number)
