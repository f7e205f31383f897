# SPDX-License-Identifier: Apache-2.0
"""The result of a transfer: files, planes and paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrc import versions
from mrc.aio.context import Context
from mrc.aio.recording import Recording
from mrc.cli import figures
from mrc.cli.figures import carried_percent, sentence
from mrc.cli.output import format_bytes, format_rate, format_seconds
from mrc.connect.parse import printable
from mrc.enums import WarningKind
from mrc.events import PlaneInfo
from mrc.results import like, nonzero
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.pack import MAX_LISTED, StoredBatch, Total
from mrc.transfer.results import FailedFile, Outage, Role, Transfer, TransferPlane, Waits
from mrc.transfer.sender import CHUNKS_IN_FLIGHT
from mrc.transfer.session import TransferSession
from mrc.units import counted

MANY_OVERFLOWS = 100  # packets; fewer cost no speed


def carried_bytes(role: str, planes: Sequence[PlaneInfo]) -> dict[int, int]:
    """Payload that each plane carried in the direction of the transfer."""
    name = "sent_bytes" if role == "sender" else "received_bytes"
    return {plane.plane: getattr(plane, name) for plane in planes}


def slow_planes(role: str, planes: Sequence[PlaneInfo]) -> str:
    """A sentence about planes that carried much less than the others; empty if there are none."""
    return sentence(carried_bytes(role, planes))


async def overflow(ctx: Context) -> str:
    """A sentence when packets were lost because the kernel limits the receive buffer; or ""."""
    if all(warning.kind is not WarningKind.RCVBUF_SMALL for warning in ctx.warnings):
        return ""
    count = (await ctx.counters()).get("RX_OVERFLOW", 0)
    if count < MANY_OVERFLOWS:
        return ""
    lost = counted(count, "packet")
    return f"{lost} did not fit the receive buffer: mrc doctor shows how to enlarge it"


class LeftOut(NamedTuple):
    """How many files a sender has left out, for each reason."""

    skipped: int = 0
    excluded: int = 0
    unchanged: int = 0


NOTHING = LeftOut()


async def transfer(
    role: Role,
    session: TransferSession,
    moved: Total,
    tcp_port: int,
    recording: Recording | None = None,
    outages: Sequence[Outage] = (),
    failed: Sequence[FailedFile] = (),
    failed_count: int = 0,
    waited_seconds: float = 0.0,
    left_out: LeftOut = NOTHING,
    retries: int = 0,
) -> Transfer:
    """The result that `mrc send --json` and `mrc recv --json` print."""
    info, evs, config = await session.query(), await session.evs(), session.ctx.config
    carried = carried_percent(carried_bytes(role, info.planes))
    return like(
        Transfer,
        *(config.queues, config.retries, info, moved, left_out),
        figures.settings(session.ctx, session.qp, tcp_port=tcp_port),
        role=role,
        files=tuple(moved.files.values()),
        failed=tuple(failed),
        failed_count=failed_count,
        waited_seconds=waited_seconds,
        goodput_bits_per_second=sent_bytes(moved) * 8 / moved.seconds if moved.seconds > 0 else 0.0,
        retries=retries,
        waits=session.waiting.seconds(),
        qps=len(session.qps),
        planes=tuple(like(TransferPlane, p, carried_percent=carried[p.plane]) for p in info.planes),
        evs=tuple(evs),
        outages=tuple(outages),
        counters=nonzero(await session.ctx.counters()),
        drops=nonzero(await session.ctx.drops()),
        transfer_version=versions.TRANSFER,
        chunk_bytes=CHUNK_BYTES,
        chunks_in_flight=CHUNKS_IN_FLIGHT,
        digest_algorithm=versions.DIGEST,
        bins=None if recording is None else figures.bins(recording),
    )


def waits_sentence(waits: Waits) -> str:
    """Which part of the transfer held the others up."""
    parts = (
        ("reading", waits.reading_seconds),
        ("the network", waits.network_seconds),
        ("storing", waits.storing_seconds),
    )
    told = ", ".join(f"{format_seconds(seconds)} for {part}" for part, seconds in parts if seconds)
    return f"waited {told}" if told else ""


def sent_bytes(moved: StoredBatch | Total) -> int:
    """The bytes that travelled: holes, and those that the receiver had kept, did not."""
    return moved.bytes - moved.resumed_bytes - moved.hole_bytes


def batch_lines(batch: StoredBatch, seconds: float) -> list[str]:
    """A line about each file, stored and verified; of a pack of many files one about all."""
    rate = f"  {format_rate(sent_bytes(batch) * 8 / seconds)}" if seconds > 0 else ""
    times = f"  {format_seconds(seconds)}{rate}"
    if batch.packed and (batch.folders or batch.count > MAX_LISTED):
        counts = [counted(batch.count, "file"), counted(batch.folders, "folder")]
        counts += [counted(batch.links, "link")] * (batch.links > 0)
        return [f"{', '.join(counts)}  {format_bytes(batch.bytes)}{times}"]
    return [
        f"{printable(file.path)}  {format_bytes(file.bytes)}{'' if batch.packed else times}"
        f"  {versions.DIGEST}:{file.digest}"
        for file in batch.files
    ]
