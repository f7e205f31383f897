# SPDX-License-Identifier: Apache-2.0
"""Snapshots of others: made harmless, and compared with an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrc.errors import ProtocolError
from mrc.exchange.foreign import shown
from mrc.observe.snapshot import SCHEMA, Snapshot

_MAX_TEXT = 128
_QP_RATES = {
    "acknowledged_bytes": "acknowledged_bits_per_second",
    "received_bytes": "received_bits_per_second",
    "retransmitted_packets": "retransmitted_packets_per_second",
}
_PLANE_RATES = {
    "sent_bytes": "sent_bits_per_second",
    "received_bytes": "received_bits_per_second",
}


def checked(found: Mapping[str, Any]) -> Snapshot:
    """A copy without control characters, that has what is shown; raises ProtocolError."""
    try:
        copy: Snapshot = _clean(found)
        if copy["schema"] != SCHEMA:
            raise ProtocolError(f"it speaks schema {shown(copy['schema'], 20)}, this mrc {SCHEMA}")
        _check(copy, host=str, program=str, pid=int, monotonic_ns=int, qps_total=int)
        if "udp_port" in copy:  # those of other hosts do not tell it
            _check(copy, udp_port=int)
        _check(copy, ports=list, qps=list, counters=dict, drops=dict)
        for port in copy["ports"]:
            _check(port, plane=int, nic=str, address=str)
        for qp in copy["qps"]:
            _check_qp(qp)
    except (KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a snapshot that cannot be read: {error}") from None
    return copy


def _check_qp(qp: dict[str, Any]) -> None:
    _check(qp, peer=str, state=str, planes=list)
    _check(qp, **({"qpn": int} if "qpn" in qp else {"id": str}))
    _check(qp, outstanding=int, cwnd_bytes=int, inflight_bytes=int, rtt_ns=int, timeouts=int)
    _check(qp, **dict.fromkeys(_QP_RATES, int))
    for plane in qp["planes"]:
        plane |= {"slow": False, "share_percent": 100} | plane  # an older mrc has neither
        _check(plane, slow=bool, share_percent=int)
        _check(plane, plane=int, suspended=bool, rtt_ns=int, lost_packets=int)
        _check(plane, **dict.fromkeys(_PLANE_RATES, int))
    for ev in qp["evs"] or ():
        _check(ev, plane=int, path=str, state=str, active=bool, rtt_ns=int, lost_packets=int)


def _check(value: dict[str, Any], **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise TypeError(f"wrong {name}")


def _clean(value: Any) -> Any:
    """The same with texts that a terminal takes for text."""
    if isinstance(value, str):
        return shown(value, _MAX_TEXT)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(each) for name, each in value.items()}
    return value


def with_rates(before: Snapshot | None, now: Snapshot) -> Snapshot:
    """`now` with what moved in each second since `before`, which must be of the same endpoint.

    A QP that is new, or whose snapshot before is missing, has rates of 0.
    """
    seconds = (now["monotonic_ns"] - before["monotonic_ns"]) / 1e9 if before is not None else 0.0
    earlier = {_name(qp): qp for qp in before["qps"]} if before is not None else {}
    qps = []
    for qp in now["qps"]:
        old = earlier.get(_name(qp), qp)
        planes = {plane["plane"]: plane for plane in old["planes"]}
        qps.append(
            qp
            | _rates(old, qp, _QP_RATES, seconds)
            | {
                "planes": [
                    plane | _rates(planes.get(plane["plane"], plane), plane, _PLANE_RATES, seconds)
                    for plane in qp["planes"]
                ]
            }
        )
    return now | {"qps": qps}


def _name(qp: Mapping[str, Any]) -> int | str:
    """What tells a QP from others: its number, or what stands for it on other hosts."""
    name: int | str = qp["qpn"] if "qpn" in qp else qp["id"]
    return name


def _rates(
    old: Mapping[str, Any], new: Mapping[str, Any], names: Mapping[str, str], seconds: float
) -> dict[str, float]:
    rates = {}
    for counter, rate in names.items():
        scale = 8 if rate.endswith("bits_per_second") else 1
        moved = max(0, new[counter] - old[counter]) * scale
        rates[rate] = moved / seconds if seconds > 0 else 0.0
    return rates
