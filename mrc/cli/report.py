# SPDX-License-Identifier: Apache-2.0
"""The result of a transfer: what moved, over which planes and paths, with which settings."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mrc import versions
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.cli.output import format_bytes, format_rate, format_seconds, version_of
from mrc.cli.shares import carried_percent, sentence
from mrc.events import EvInfo, PlaneInfo
from mrc.exchange.foreign import printable
from mrc.transfer.session import Session, TransferredFile
from mrc.transfer.writing import CHUNK_BYTES, CHUNKS_IN_FLIGHT

_OF_PLANE = (
    "plane", "sent_packets", "sent_bytes", "lost_packets", "received_packets", "received_bytes", "rtt_ns",
    "base_rtt_ns", "suspended", "slow", "share_percent",
)  # fmt: skip
_OF_EV = ("ev", "plane", "path", "active", "sent_packets", "lost_packets", "rtt_ns")


def planes_json(planes: Sequence[PlaneInfo]) -> list[dict[str, Any]]:
    return [{key: getattr(plane, key) for key in _OF_PLANE} for plane in planes]


def evs_json(evs: Sequence[EvInfo]) -> list[dict[str, Any]]:
    return [{key: getattr(ev, key) for key in _OF_EV} | {"state": ev.state.name} for ev in evs]


def machine_json(ctx: Context, arguments: Sequence[str]) -> dict[str, Any]:
    """When, where and with which arguments something was measured."""
    cpus = re.findall(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": ctx.name,
        "kernel": platform.release(),
        "cpu": cpus[0] if cpus else None,  # ARM's kernel does not name it
        "cpu_cores": os.cpu_count(),
        "arguments": list(arguments),
    }


def settings_json(ctx: Context, qp: QP, *, tcp_port: int) -> dict[str, Any]:
    """Every parameter that has a say in how fast a QP is."""
    config = ctx.config
    return {
        "mrc_version": version_of("mrc-transport"),
        "peer": qp.peer_host,
        "tcp_port": tcp_port,
        "udp_port": ctx.udp_port,
        "path_mtu_bytes": qp.path_mtu,
        "mpr": qp.mpr,
        "sq_depth": config.sq_depth,
        "timeout": config.timeout,
        "spray": config.spray,
        "cc": config.cc.name,
        "plane_shares": config.plane_shares.name,
        "integrity": config.integrity.name,
    }


def _transfer_settings_json(session: Session, *, tcp_port: int) -> dict[str, Any]:
    config = session.ctx.config
    return settings_json(session.ctx, session.qp, tcp_port=tcp_port) | {
        "transfer_version": versions.TRANSFER,
        "max_wimm": config.max_wimm,
        "retry_linear": config.retry_linear,
        "retry_exp": config.retry_exp,
        "chunk_bytes": CHUNK_BYTES,
        "chunks_in_flight": CHUNKS_IN_FLIGHT,
        "digest_algorithm": versions.DIGEST,
    }


def nonzero(values: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value != 0}


def carried_bytes(role: str, planes: Sequence[PlaneInfo]) -> dict[int, int]:
    """Payload that each plane carried in the direction of the transfer."""
    name = "sent_bytes" if role == "sender" else "received_bytes"
    return {plane.plane: getattr(plane, name) for plane in planes}


def slow_planes(role: str, planes: Sequence[PlaneInfo]) -> str:
    """The sentence about planes that carried much less than the others; empty without one."""
    return sentence(carried_bytes(role, planes))


async def transfer_json(
    role: str, session: Session, files: Sequence[TransferredFile], seconds: float, tcp_port: int
) -> dict[str, Any]:
    """What `mrc send --json` and `mrc recv --json` print, but for the schema."""
    info, evs = await session.query(), await session.evs()
    total = sum(file.bytes for file in files)
    carried = carried_percent(carried_bytes(role, info.planes))
    return {
        "role": role,
        "files": [asdict(file) for file in files],
        "bytes": total,
        "seconds": seconds,
        "goodput_bits_per_second": total * 8 / seconds if seconds > 0 else 0.0,
        "qps": len(session.qps),
        "sent_packets": info.sent_packets,
        "retransmitted_packets": info.retransmitted_packets,
        "spurious_packets": info.spurious_packets,
        "planes": [
            plane | {"carried_percent": carried[plane["plane"]]}
            for plane in planes_json(info.planes)
        ],
        "evs": evs_json(evs),
        "counters": nonzero(await session.ctx.counters()),
        "drops": nonzero(await session.ctx.drops()),
        **_transfer_settings_json(session, tcp_port=tcp_port),
    }


def file_line(file: TransferredFile, seconds: float) -> str:
    """One line for people about a file that is stored and verified."""
    rate = f"  {format_rate(file.bytes * 8 / seconds)}" if seconds > 0 else ""
    return (
        f"{printable(file.path)}  {format_bytes(file.bytes)}  {format_seconds(seconds)}{rate}"
        f"  {versions.DIGEST}:{file.digest}"
    )
