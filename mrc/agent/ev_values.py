# SPDX-License-Identifier: Apache-2.0
"""EVs as MRC's C interface names them, and the paths that they mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from mrc.fabric.hostconfig import HostConfig
from mrc.units import counted

VALUE_BYTES = 32
_PORT_BYTES = 2


class Ev(NamedTuple):
    """An EV: its plane, and the bits that select the path, in network order, then zeros."""

    plane: int
    value: bytes

    def __str__(self) -> str:
        shown = self.value.rstrip(b"\0") or b"\0"
        return f"{(shown + bytes(len(shown) % 2)).hex(' ', 2)} of port {self.plane}"


class GeneratedField(NamedTuple):
    """A field of generated EVs: an initial value, whose bits under the mask take all values from
    `least` to `most`.
    """

    bits: int
    initial: int
    least: int
    most: int
    mask: int


UNPOPULATED = Ev(0, bytes(VALUE_BYTES))


def ev_of(plane: int, usids: Sequence[str], source_port: int) -> Ev:
    """The EV of a path: its uSIDs, or without SRv6 the UDP source port."""
    value = usid_bytes(usids) if usids else source_port.to_bytes(_PORT_BYTES, "big")
    return Ev(plane, value.ljust(VALUE_BYTES, b"\0"))


def usid_bytes(usids: Iterable[str]) -> bytes:
    return bytes.fromhex("".join(usids))


def names_of(host: HostConfig | None) -> dict[Ev, str]:
    """The paths of a host with SRv6: each EV, towards any peer, and the name of its path."""
    if host is None:
        return {}
    return {
        ev_of(path.plane, path.usids, 0): path.name
        for peer in host.peers.values()
        for path in peer.paths
        if path.usids
    }


def generated(fields: Sequence[GeneratedField], planes: Sequence[int], most: int) -> list[Ev]:
    """The EVs that the fields make, the last one varying first, on each plane in turn.

    Raises ValueError for fields that are no whole bytes in sum, empty, or too many.
    """
    width = sum(field.bits for field in fields)
    if not fields or width % 8 or not 0 < width <= 8 * VALUE_BYTES:
        raise ValueError(f"the fields have {width} bits: they must be whole bytes, up to 256 bits")
    for field in fields:
        if (field.initial | field.mask) >> field.bits:
            raise ValueError("an initial value or a mask is wider than the field")
        if field.least > field.most or field.most >> field.mask.bit_count():
            raise ValueError("a field's values are not in order, or do not fit its mask")
    if prod(field.most - field.least + 1 for field in fields) * max(1, len(planes)) > most:
        raise ValueError(f"the fields make more than {counted(most, 'EV')}")
    return [
        Ev(plane, _joined(fields, values, width).ljust(VALUE_BYTES, b"\0"))
        for values in product(*(_values(field) for field in fields))
        for plane in planes
    ]


def _values(field: GeneratedField) -> Iterator[int]:
    places = [1 << place for place in range(field.bits) if field.mask >> place & 1]
    for value in range(field.least, field.most + 1):
        generated = sum(bit for i, bit in enumerate(places) if value >> i & 1)
        yield field.initial & ~field.mask | generated


def _joined(fields: Sequence[GeneratedField], values: Sequence[int], width: int) -> bytes:
    whole = 0
    for field, value in zip(fields, values, strict=True):
        whole = whole << field.bits | value
    return whole.to_bytes(width // 8, "big")
