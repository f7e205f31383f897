# SPDX-License-Identifier: Apache-2.0
"""Converts the engine's structs about a QP into the records of `mrc.events`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mrc.enums import EvState, QpState, WcStatus
from mrc.events import EvInfo, PlaneInfo, QpInfo
from mrc.fabric.paths import PathEv


def qp_info(info: Any, planes: Iterable[int]) -> QpInfo:
    """Converts a struct mrc_qp_info; `planes` are the planes of the QP."""
    names = [name for name in QpInfo.__struct_fields__ if name != "planes"]
    fields = {name: getattr(info, name) for name in names}
    fields["state"], fields["status"] = QpState(info.state), WcStatus(info.status)
    fields["rtt_ns"] = _rtt_ns(info.rtt_ns)
    return QpInfo(
        **fields, planes=tuple(_plane_info(plane, info.planes[plane - 1]) for plane in planes)
    )


def _plane_info(plane: int, info: Any) -> PlaneInfo:
    fields = {name: getattr(info, name) for name in PlaneInfo.__struct_fields__ if name != "plane"}
    fields |= {"suspended": bool(info.suspended), "slow": bool(info.slow)}
    fields |= {"rtt_ns": _rtt_ns(info.rtt_ns), "base_rtt_ns": _rtt_ns(info.base_rtt_ns)}
    return PlaneInfo(plane=plane, **fields)


def ev_info(index: int, path: PathEv, info: Any) -> EvInfo:
    """Converts a struct mrc_ev_info; `path` is the EV's path."""
    return EvInfo(
        index=index,
        ev=info.ev,
        plane=info.port,
        path=path.name,
        destination=str(path.attr.destination),
        usids=path.usids,
        segments=path.segments,
        state=EvState(info.state),
        active=bool(info.active),
        sent_packets=info.sent_packets,
        sent_bytes=info.sent_bytes,
        lost_packets=info.lost_packets,
        sent_probes=info.sent_probes,
        rtt_ns=_rtt_ns(info.rtt_ns),
    )


def _rtt_ns(value: int) -> int | None:
    """The engine reports -1 before the first sample."""
    return value if value >= 0 else None
