# SPDX-License-Identifier: Apache-2.0
"""Checks snapshots of other processes, and computes rates from two snapshots. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrc.connect.parse import shown
from mrc.errors import ProtocolError
from mrc.results.plain import SCHEMA, like, names_of
from mrc.results.snapshot import Plane, Qp, Snapshot
from mrc.results.top import Endpoint, PlaneRates, QpRates
from mrc.typed import take

_MAX_TEXT = 128


def checked(found: Mapping[str, Any]) -> Snapshot:
    """The snapshot without control characters; raises ProtocolError if it is invalid."""
    if (schema := found.get("schema")) != SCHEMA:
        other = f"the snapshot has schema {shown(schema, 20)}, this mrc supports {SCHEMA}"
        raise ProtocolError(other)
    try:
        return take(_clean(found), Snapshot)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the snapshot is invalid: {error}") from None


def _clean(value: Any) -> Any:
    """The value with control characters in its texts escaped, and long texts cut."""
    if isinstance(value, str):
        return shown(value, _MAX_TEXT)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, Mapping):
        return {_clean(name): _clean(each) for name, each in value.items()}
    return value


def with_rates(before: Snapshot | None, now: Snapshot) -> Endpoint:
    """`now` with the rates since `before`, a snapshot of the same endpoint.

    A QP that is missing in `before` has rates of 0.
    """
    seconds = (now.monotonic_ns - before.monotonic_ns) / 1e9 if before is not None else 0.0
    earlier = {_name(qp): qp for qp in before.qps} if before is not None else {}
    qps = (_qp(earlier.get(_name(qp), qp), qp, seconds) for qp in now.qps)
    first = now if before is None else before
    return like(
        Endpoint,
        now,
        qps=tuple(qps),
        counters_per_second=_growth(first.counters, now.counters, seconds),
        drops_per_second=_growth(first.drops, now.drops, seconds),
    )


def _growth(old: Mapping[str, int], new: Mapping[str, int], seconds: float) -> dict[str, float]:
    if seconds <= 0:
        return {}
    grown = {name: count - old.get(name, 0) for name, count in new.items()}
    return {name: count / seconds for name, count in grown.items() if count > 0}


def _name(qp: Qp) -> int | str | None:
    """The QPN, or in a remote snapshot the `id`, which identifies the QP."""
    return qp.id if qp.qpn is None else qp.qpn


def _qp(old: Qp, new: Qp, seconds: float) -> QpRates:
    before = {plane.plane: plane for plane in old.planes}
    planes = (_plane(before.get(plane.plane, plane), plane, seconds) for plane in new.planes)
    return like(QpRates, new, planes=tuple(planes), **_rates(QpRates, old, new, seconds))


def _plane(old: Plane, new: Plane, seconds: float) -> PlaneRates:
    return like(PlaneRates, new, **_rates(PlaneRates, old, new, seconds))


def _rates(kind: type, old: Qp | Plane, new: Qp | Plane, seconds: float) -> dict[str, float]:
    """The rates that `kind` declares; the name of each rate begins with its counter."""
    rates = {}
    for name in (each for each in names_of(kind) if each.endswith("_per_second")):
        counter, scale = name.removesuffix("_per_second"), 1
        if counter.endswith("_bits"):
            counter, scale = counter.removesuffix("_bits") + "_bytes", 8
        moved = max(0, getattr(new, counter) - getattr(old, counter)) * scale
        rates[name] = moved / seconds if seconds > 0 else 0.0
    return rates
