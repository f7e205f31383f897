# SPDX-License-Identifier: Apache-2.0
"""Flows by TCP or MPTCP of the kernel: one connection for each flow.

A write is so many bytes of the stream. The receiver answers each one with a byte, so a write is
done when the receiver has it, as a write of RDMA.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from mrc.workload.task import Counts, FlowTask, HostTask

_PORT = 5301
_MPTCP_PORT = 5302
_IPPROTO_MPTCP = 262  # socket.IPPROTO_MPTCP, which uvloop's sockets pass on
_CHUNK = 256 << 10  # that one call takes, of Python's; the kernel makes segments of it
_NUMBER = struct.Struct("!I")
# of struct tcp_info, linux/tcp.h
_RTT_US, _TOTAL_RETRANS, _DATA_SEGS_OUT, _TCP_INFO_BYTES = 68, 100, 156, 160


def make_socket(over: str) -> socket.socket:
    """A socket that does not block. Raises OSError if the kernel has no MPTCP."""
    proto = _IPPROTO_MPTCP if over == "mptcp" else socket.IPPROTO_TCP
    made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, proto)
    made.setblocking(False)
    return made


class TcpLink:
    """The connection of a flow at its sender."""

    def __init__(self, flow: FlowTask, connection: socket.socket) -> None:
        self._flow, self._connection = flow, connection
        self._turn = asyncio.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers = asyncio.create_task(self._hear())
        self._chunk = memoryview(b"\1" * min(_CHUNK, flow.bytes))

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            done = loop.create_future()
            self._waiting.append(done)
            while self._flow.is_endless:
                await loop.sock_sendall(self._connection, self._chunk)
            for at in range(0, self._flow.bytes, _CHUNK):
                part = self._chunk[: self._flow.bytes - at]
                await loop.sock_sendall(self._connection, part)
        await done

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        gone = OSError(errno.ECONNRESET, "the receiver has closed the TCP connection")
        try:
            while answers := await loop.sock_recv(self._connection, 4096):
                for _ in answers:
                    self._waiting.popleft().set_result(None)
        except OSError as error:
            gone = error
        for done in self._waiting:
            if not done.done():
                done.set_exception(gone)

    async def counts(self) -> Counts:
        if self._flow.over == "mptcp":
            return Counts()  # the kernel tells those of one subflow
        told = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)

        def number(at: int) -> int:
            return int.from_bytes(told[at : at + 4], "little")

        return Counts(
            sent_packets=number(_DATA_SEGS_OUT),
            retransmitted_packets=number(_TOTAL_RETRANS),
            rtt_ns=number(_RTT_US) * 1000,
        )

    def close(self) -> None:
        self._answers.cancel()
        self._connection.close()


class TcpTransport:
    """The TCP connections of a host."""

    def __init__(
        self, task: HostTask, stack: AsyncExitStack, on_arrival: Callable[[int, int], None]
    ) -> None:
        overs = ("tcp", "mptcp")
        self._sends = [flow for flow in task.sends if flow.over in overs]
        self._receives = {flow.number: flow for flow in task.receives if flow.over in overs}
        self._planes = range(1, task.planes + 1)
        self._stack, self._on_arrival = stack, on_arrival
        self._got = dict.fromkeys(self._receives, 0)
        self._jobs: list[asyncio.Task[None]] = []

    async def open(self) -> Self:
        """Listens."""
        for over, port in (("tcp", _PORT), ("mptcp", _MPTCP_PORT)):
            if any(flow.over == over for flow in self._receives.values()):
                listener = self._stack.enter_context(make_socket(over))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("::", port))
                listener.listen(len(self._receives))
                self._jobs.append(asyncio.create_task(self._accept(listener)))
        return self

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            self._jobs.append(asyncio.create_task(self._take(connection)))

    async def _take(self, connection: socket.socket) -> None:
        """Counts the bytes of a flow, and answers its writes."""
        loop, buffer = asyncio.get_running_loop(), bytearray(_CHUNK)
        with connection:
            first = await loop.sock_recv(connection, _NUMBER.size)  # one segment, never in parts
            flow = self._receives[_NUMBER.unpack(first)[0]]
            arrived = 0
            while n := await loop.sock_recv_into(connection, buffer):
                self._got[flow.number] += n
                writes = 0 if flow.is_endless else self._got[flow.number] // flow.bytes
                if writes > arrived:
                    await loop.sock_sendall(connection, bytes(writes - arrived))
                    arrived = writes
                    self._on_arrival(flow.number, arrived)

    async def connect(self) -> dict[int, TcpLink]:
        """The links of the flows that begin here."""
        loop, links = asyncio.get_running_loop(), {}
        for flow in self._sends:
            source, address = flow.route
            connection = make_socket(flow.over)
            # Linux 6.1 puts all connections to one port on one path, unless they choose their own
            # port first.
            connection.bind((source or "::", 0))
            if flow.is_endless:  # the TCP of a scenario, which the simulator has too
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            await loop.sock_connect(connection, (address, self._port(flow)))
            await loop.sock_sendall(connection, _NUMBER.pack(flow.number))
            links[flow.number] = TcpLink(flow, connection)
            self._stack.callback(links[flow.number].close)
        return links

    @staticmethod
    def _port(flow: FlowTask) -> int:
        return _MPTCP_PORT if flow.over == "mptcp" else _PORT

    async def received(self) -> list[tuple[int, list[int]]]:
        """Each flow that ends here: bytes received, and bytes of each plane where it has one."""
        return [
            (number, [got, *(got * (plane == flow.plane) for plane in self._planes)])
            for number, flow in self._receives.items()
            for got in [self._got[number]]
        ]

    async def close(self) -> None:
        for job in self._jobs:
            job.cancel()
