# SPDX-License-Identifier: Apache-2.0
"""Standard input and output as ends of a transfer: reads and writes that `stop` can end.

A helper thread waits for the pipe, because the other program may pause for hours.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress
from errno import EPIPE
from typing import Self

from mrc.connect.parse import printable
from mrc.transfer.folders import RECEIVERS, Meta
from mrc.transfer.messages import Digest
from mrc.transfer.names import FileError, FinalError, StoppedError, cause_of

_FLUSH_MS = 100  # a chunk waits at most this long for more input
_PIECE_BYTES = 4096  # PIPE_BUF: a pipe that is ready takes as many without blocking


class _Pipe:
    """A descriptor that a helper thread waits for. A context manager; does not close it."""

    def __init__(self, fd: int, event: int) -> None:
        self.fd = fd
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(fd, event)
        self._poll.register(self._wake, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._wake)

    def stop(self) -> None:
        """Ends a wait in the helper thread, and all later ones."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_ms: int | None = None) -> bool:
        """True when the descriptor is ready, False after the timeout. Raises StoppedError."""
        ready = [fd for fd, _ in self._poll.poll(timeout_ms)]
        if self._wake in ready:
            raise StoppedError
        return bool(ready)


class PipeReader(_Pipe):
    """Standard input as a file of unknown size."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, select.POLLIN)
        self.bytes = 0
        self.digest = Digest()
        self._ended = False

    def fill(self, payload: memoryview) -> int:
        """Reads until the memory is full, the input ends or pauses; returns 0 at the end."""
        done = 0
        try:
            while done < len(payload) and not self._ended:
                if not self.wait(_FLUSH_MS if done else None):
                    break
                count = os.readv(self.fd, [payload[done:]])
                self._ended = count == 0
                done += count
        except OSError as error:
            raise FileError(f"standard input: {cause_of(error)}") from error
        self.digest.update(payload[:done])
        self.bytes += done
        return done


class PipeWriter(_Pipe):
    """Standard output as the place of all files of one sender, one after the other."""

    def __init__(self, fd: int) -> None:
        self._own = -1
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            # A descriptor of our own may be non-blocking: other programs share the given one.
            try:
                self._own = fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                pass  # without /proc it writes in small pieces
        super().__init__(fd, select.POLLOUT)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        if self._own >= 0:
            os.close(self._own)

    def write(self, data: memoryview) -> None:
        """Writes all of `data`; raises FileError when the reader is gone."""
        done = 0
        try:
            while done < len(data):
                self.wait()
                most = len(data) if self._own >= 0 else done + _PIECE_BYTES
                with suppress(BlockingIOError):
                    done += os.write(self.fd, data[done:most])
        except OSError as error:
            ended = " (the program that reads it has ended)" if error.errno == EPIPE else ""
            raise FinalError(f"standard output: {cause_of(error)}{ended}") from error

    def tree(self, *_: object) -> StdoutTree:
        """The place for the files of one session."""
        return StdoutTree(self)


class StdoutTree:
    """Takes the files of one sender. Names, folders, modes and times do not matter."""

    def __init__(self, pipe: PipeWriter) -> None:
        self._pipe = pipe

    def same(self, name: str, size: int, *, sparse: bool = False) -> None:
        return None

    def create(
        self, name: str, size: int | None, *, sparse: bool = False, chunk_bytes: int = 0
    ) -> StdoutTarget:
        return StdoutTarget(self._pipe, name)

    def has(self, name: str, size: int, mtime_ns: int) -> bool:
        return False

    def make_link(self, name: str, target: str) -> None:
        """Standard output has no links."""

    def lacks(self, name: str) -> None:
        pass

    def finish_folder(self, name: str, meta: Meta) -> bool:
        return False

    def stop(self) -> None:
        """Ends a write that waits for the program behind the pipe."""
        self._pipe.stop()

    def check_stop(self) -> None:
        """The pipe does."""

    def sync(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class StdoutTarget:
    """A file that goes to standard output, chunk by chunk."""

    def __init__(self, pipe: PipeWriter, name: str) -> None:
        self.name = name
        self.path = f"stdout:{printable(name)}"
        self.bytes = 0
        self._pipe = pipe

    def check_room(self) -> None:
        pass

    def write(self, offset: int, chunk: memoryview) -> None:
        assert offset == self.bytes, "chunks are stored in order"
        self._pipe.write(chunk)
        self.bytes += len(chunk)

    def kept(self, most: int) -> tuple[int, Digest]:
        return 0, Digest()

    def begin(self, chunks: int, start: int) -> None:
        pass

    def add_chunk(self, digest: bytes) -> None:
        pass

    def commit(self, meta: Meta = RECEIVERS) -> None:
        pass

    def discard(self) -> None:
        pass

    def close(self) -> int:
        return 0
