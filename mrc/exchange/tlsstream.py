# SPDX-License-Identifier: Apache-2.0
"""TLS over the streams of a TCP connection.

asyncio's own start_tls closes the connection when a certificate is refused, but does not send the
alert. The peer would then not learn the reason, and its user could not act on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_CHUNK_BYTES = 16 << 10
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The end of TCP, and the end that TLS announces: which of them comes depends on the version of
OpenSSL, and on whether this side has announced its own end.
"""


class TlsStream:
    """Reader and writer in one, with the methods of asyncio's streams that a Channel uses."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        server_hostname: str | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self.tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server, server_hostname=server_hostname
        )
        self.transport = writer.transport

    async def start(self) -> None:
        """Raises ssl.SSLError, after the peer has been sent its alert, and ConnectionError."""
        try:
            await self._step(self.tls.do_handshake)
            await self.drain()
        except _ENDS as error:
            raise ConnectionResetError("the peer closed the connection") from error

    async def _step(self, call: Callable[[], T]) -> T:
        """The result of `call`, which may require more bytes of the peer."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                pass
            finally:
                answers = self._flush()
            if answers:  # a peer that does not read them is not read either
                await self.drain()
            data = await self._reader.read(_CHUNK_BYTES)
            if data:
                self._arrived.write(data)
            else:
                self._arrived.write_eof()

    def _flush(self) -> bool:
        """Sends what TLS has made; whether there was any."""
        data = self._leaving.read()
        if data and not self._writer.is_closing():  # uvloop raises; drain tells that it is closed
            self._writer.write(data)
        return bool(data)

    async def read(self, most: int) -> bytes:
        """Up to `most` bytes; none at the end. Raises ssl.SSLError for an alert."""
        try:
            return await self._step(lambda: self.tls.read(most))
        except _ENDS:
            return b""

    async def readexactly(self, count: int) -> bytearray:
        """The bytes, which lie nowhere else: the caller can wipe what is secret."""
        found, done = bytearray(count), 0
        with memoryview(found) as room:
            while done < count:
                more = await self._read_into(room[done:])
                if not more:
                    raise asyncio.IncompleteReadError(bytes(room[:done]), count)
                done += more
        return found

    async def _read_into(self, room: memoryview) -> int:
        read: Callable[..., Any] = self.tls.read  # with a buffer it returns a number
        try:
            return int(await self._step(lambda: read(len(room), room)))
        except _ENDS:
            return 0

    def write(self, data: bytes | bytearray) -> None:
        """Encrypts the bytes at once, so that the caller can wipe them."""
        self.tls.write(data)
        self._flush()

    async def drain(self) -> None:
        await self._writer.drain()

    def _say_end(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the peer has not said it yet
            self.tls.unwrap()
        self._flush()

    def write_eof(self) -> None:
        self._say_end()
        if not self._writer.is_closing():
            self._writer.write_eof()

    def is_closing(self) -> bool:
        return self._writer.is_closing()

    def close(self) -> None:
        self._say_end()
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    def get_extra_info(self, name: str) -> Any:
        return self._writer.get_extra_info(name)
