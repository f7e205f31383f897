# SPDX-License-Identifier: Apache-2.0
"""What peers say. All their text and all their numbers pass through here. Pure.

Text that reaches a terminal, a log, a metric or an error goes through `shown`. JSON goes through
`parse`, which refuses numbers that arithmetic on floats cannot take, and then through `mrc.typed`.
The json module parses it, not msgspec: msgspec limits no whole number in private data, and refuses
the lone surrogates that stand for bytes in file names that are not UTF-8.
"""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, NoReturn

MAX_SHOWN = 300  # characters
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp")  # control, direction and the like, ends of lines
MAX_WHOLE = (1 << 64) - 1


# ---- Text -----------------------------------------------------------------------------------


def printable(text: str) -> str:
    """`text` with everything that a terminal would act on, or cannot show, escaped.

    This includes control characters, line feeds, lone surrogates, and the invisible characters that
    change the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def has_invisible(text: str) -> bool:
    """Whether it holds characters that do something in place of being seen."""
    return any(unicodedata.category(c) in _INVISIBLE for c in text)


def shown(value: object, limit: int = MAX_SHOWN) -> str:
    """What a peer sent, as one harmless line of at most `limit` characters.

    Of a list or an object only its type is shown: it may be nested deeper than Python can print.
    """
    if not isinstance(value, str):
        scalar = value is None or isinstance(value, (bool, int, float))
        value = str(value) if scalar and not _is_huge(value) else f"({type(value).__name__})"
    line = printable(value[: limit + 1])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and abs(value) > MAX_WHOLE


def harmless_lines(text: str) -> str:
    """Several lines at once, each `printable`."""
    return "\n".join(map(printable, text.split("\n")))


# ---- JSON -----------------------------------------------------------------------------------


def parse(data: bytes | bytearray) -> dict[str, Any]:
    """The JSON object that `data` holds, with numbers of 64 bits at most.

    Raises ValueError, whose text ends the sentence "the peer sent a message that is".
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
    value = int(digits)  # more than 4300 digits are a ValueError
    return value if abs(value) <= MAX_WHOLE else _refuse(digits)


def _parse_real(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number:.20} is out of range")
