# SPDX-License-Identifier: Apache-2.0
"""The event loop of the blocking calls of a process.

Whoever waits runs it, in his own thread: a call then costs no change of threads. While somebody
else runs it, a call waits for that. Between calls nobody would watch the peers: after a short time
a thread of ours runs the loop, until the next call takes it back. The thread ends when no task is
left, because everything is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import Future as ThreadFuture
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from mrc.engine.native import FORKED
from mrc.errors import StateError

T = TypeVar("T")
_IDLE_SECONDS = 0.01  # that nobody calls before the thread runs the loop


class CallerLoop:
    """An event loop that its callers run."""

    _current: CallerLoop | None = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, _close, self._loop)
        self._process = os.getpid()
        self._state = threading.Condition()
        self._runner: threading.Thread | None = None
        """who runs the loop"""
        self._thread: threading.Thread | None = None
        """ours, while there are tasks"""
        self._others = 0  # calls of threads that do not run it
        self._wanted = 0  # threads that wait until they may run it
        self._idle_at = monotonic() + _IDLE_SECONDS

    @classmethod
    def current(cls) -> CallerLoop:
        """That of this process."""
        if cls._current is None or cls._current.forked:
            cls._current = cls()
        return cls._current

    @property
    def forked(self) -> bool:
        """True in a child of fork, where its objects belong to the parent."""
        return os.getpid() != self._process

    # ---- Calls ----------------------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns or raises the result; cancels the work when the wait is interrupted.

        Raises StateError where it would wait for itself, and in a child of fork.
        """
        try:
            alone = self._take()
        except BaseException:
            work.close()
            raise
        if alone:
            try:
                return self._run(work)
            finally:
                self._give()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StateError("the call was cancelled: the object is closed") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._state:
                self._others -= 1

    def do(self, action: Callable[[], T]) -> T:
        """The result of a function that belongs into the loop but does not wait; what it has
        queued leaves at once.
        """
        if self._take():
            try:
                result = action()
                self._loop.call_soon(self._loop.stop)
                self._loop.run_forever()
                return result
            finally:
                self._give()
        done: ThreadFuture[T] = ThreadFuture()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        try:
            return done.result()
        finally:
            with self._state:
                self._others -= 1

    def rest(self) -> None:
        """Something was closed: waits for the end of the thread if nothing is left to do."""
        with self._state:
            thread = self._thread
            others = self._others or self._runner not in (None, thread)
            if thread is None or others or asyncio.all_tasks(self._loop):
                return
            self._idle_at = 0.0
            if self._runner is thread:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._state.notify_all()
        thread.join()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(work)
        try:
            if threading.current_thread() is not threading.main_thread():
                return self._loop.run_until_complete(task)
            return self._interruptible(task)
        except asyncio.CancelledError:
            raise StateError("the call was cancelled: the object is closed") from None

    def _interruptible(self, task: asyncio.Task[T]) -> T:
        """As asyncio.run: ^C cancels the task, in place of some callback of the loop."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self._loop.run_until_complete(task)
        interrupted = False

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            if interrupted:
                raise KeyboardInterrupt
            interrupted = True
            task.cancel()
            self._loop.call_soon_threadsafe(lambda: None)  # the selector looks up

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    # ---- Who runs the loop ----------------------------------------------------------------

    def _take(self) -> bool:
        """True: this thread runs the loop from now on. False: another one does, for this one too,
        until `_others` is less.
        """
        if self.forked:
            raise StateError(FORKED)
        running = asyncio._get_running_loop()
        if running is self._loop:
            raise StateError("a call that blocks would wait for itself here, inside a callback")
        with self._state:
            if running is not None:  # a thread runs one loop
                self._others += 1
                self._begin_thread()
                self._state.notify_all()
                return False
            if self._runner is not None and self._runner is self._thread:
                self._wanted += 1
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._state.wait_for(lambda: self._runner is not self._thread)
                self._wanted -= 1
            if self._runner is None:
                self._runner = threading.current_thread()
                return True
            self._others += 1
            return False

    def _give(self) -> None:
        with self._state:
            self._runner = None
            self._idle_at = monotonic() + _IDLE_SECONDS
            if self._others or self._wanted:
                self._state.notify_all()  # otherwise the thread looks at its time
            if self._thread is None and asyncio.all_tasks(self._loop):
                self._begin_thread()

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="mrc", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        """Runs the loop while nobody else does."""
        while True:
            with self._state:
                while self._runner is not None or not self._is_due():
                    self._state.wait(max(self._idle_at - monotonic(), _IDLE_SECONDS / 2))
                if not (self._others or asyncio.all_tasks(self._loop)):
                    self._thread = None
                    return
                self._runner = self._thread
            self._loop.run_forever()
            with self._state:
                self._runner = None
                self._state.notify_all()

    def _is_due(self) -> bool:
        if self._wanted:
            return False
        return self._others > 0 or monotonic() >= self._idle_at


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """At the end of the process our thread may still run it, and objects that nobody has closed
    have tasks, of which asyncio would complain.
    """
    if not loop.is_running():
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
