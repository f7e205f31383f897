# SPDX-License-Identifier: Apache-2.0
"""The process of an emulated fabric, and requests to it. No other module imports the compiled
emulator.

The process starts inside the fabric's namespace with the test bed's folder as its argument. As soon
as it listens on a Unix socket in that folder, it detaches from its parent. One thread moves
packets, in C. Other threads answer requests: each is a line of JSON, and so is each answer. A
thread waits for its client without a limit: the client's machine may stand still.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mrc.errors import StateError
from mrc.linux import netns
from mrc.testbed.faults import HOP_KINDS, HOST_UP, SOCKET, Hop, decode_faults
from mrc.testbed.rootless import KEEPER
from mrc.testbed.shape import interface_name

_WATCH_SECONDS = 1.0
_REQUEST_BYTES = 1 << 24

_log = logging.getLogger("mrc.testbed")


class Emulator:
    """Owns one `mrc_emu` and the thread that runs it. A context manager."""

    def __init__(self, config: dict[str, Any], links: list[Any], absent: list[Any]) -> None:
        """`links`: hops that differ from their tier, with their properties. `absent`: hops that do
        not exist. Raises OSError.
        """
        from mrc._emu import ffi, lib  # those who only send requests need it not

        self._ffi, self._lib = ffi, lib
        topology = config["topology"]
        planes, hosts = range(1, topology["planes"] + 1), range(topology["hosts"])
        missing = {(hop.end, hop.plane) for hop in map(Hop._make, absent) if hop.kind == HOST_UP}
        ports = [(host, plane) for plane in planes for host in hosts]
        self._names = [interface_name(*port) for port in ports if port not in missing]
        self._failing: set[int] = set()
        out = self._ffi.new("mrc_emu **")
        code = self._lib.mrc_emu_create(
            self._ffi.new("struct mrc_emu_config *", config),
            [
                0 if port in missing else socket.if_nametoindex(interface_name(*port))
                for port in ports
            ],
            out,
        )
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        self._emu = out[0]
        for hop, *properties in links:
            self._lib.mrc_emu_set_link(self._emu, self._number(Hop(*hop)), *properties)
        for hop in absent:
            self._lib.mrc_emu_remove_hop(self._emu, self._number(Hop(*hop)))
        self._thread = threading.Thread(target=self._lib.mrc_emu_run, args=(self._emu,))

    def __enter__(self) -> Emulator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.mrc_emu_stop(self._emu)
        self._thread.join()
        self._lib.mrc_emu_destroy(self._emu)

    def set_faults(self, wanted: dict[Hop, list[tuple[str, int, int]]]) -> None:
        """Sets the faults of these hops and clears those of all other hops.

        Raises ValueError.
        """
        numbered = {self._number(hop): faults for hop, faults in wanted.items()}
        for number in self._failing - set(numbered):
            self._lib.mrc_emu_set_faults(self._emu, number, self._ffi.NULL, 0)
        for number, faults in numbered.items():
            rows = [
                {"kind": getattr(self._lib, f"MRC_SIM_{kind.upper()}"), "a": a, "b": b}
                for kind, a, b in faults
            ]
            array = self._ffi.new("struct mrc_emu_fault[]", rows)
            if self._lib.mrc_emu_set_faults(self._emu, number, array, len(rows)) < 0:
                raise ValueError(f"the emulator refuses {faults}")
        self._failing = set(numbered)

    def stats(self) -> dict[str, Any]:
        """The fields of `struct mrc_emu_stats`. `overloaded` includes drops in the hosts' stacks,
        which the emulator does not see.
        """
        stats = self._ffi.new("struct mrc_emu_stats *")
        self._lib.mrc_emu_ask(self._emu, stats)
        found = self._fields(stats)
        found["late"] = list(found["late"])
        # Packets that the kernel dropped at each interface, in both directions.
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        rows = (line.replace(":", " ").split() for line in lines)
        found["overloaded"] += sum(int(r[4]) + int(r[12]) for r in rows if r[0] in self._names)
        return found

    def hop(self, hop: Hop) -> dict[str, int]:
        """The fields of `struct mrc_emu_hop`."""
        info = self._ffi.new("struct mrc_emu_hop *")
        self._lib.mrc_emu_ask_hop(self._emu, self._number(hop), info)
        return self._fields(info)

    def _fields(self, struct: Any) -> dict[str, Any]:
        names = (name for name, _ in self._ffi.typeof(struct).item.fields)
        return {name: getattr(struct, name) for name in names}

    def _number(self, hop: Hop) -> int:
        kind = HOP_KINDS.index(hop.kind)
        number = int(self._lib.mrc_emu_hop_number(self._emu, kind, hop.plane, hop.switch, hop.end))
        if number < 0:
            raise ValueError(f"no {hop} in this fabric")
        return number


class _ControlServer(Struct):
    """Answers requests until a stop request, the guardian's end or the loss of its folder."""

    emulator: Emulator
    listener: socket.socket
    guardian: int | None
    overloaded: int = 0
    stopped: int = field(default_factory=lambda: os.eventfd(0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    """held while a request is carried out, and from the end on"""

    def serve(self) -> None:
        ends = {self.stopped} if self.guardian is None else {self.stopped, self.guardian}
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            for each in ends:
                selector.register(each, selectors.EVENT_READ)
            # Without its folder no request can reach it.
            while Path(SOCKET).exists():
                ready = {key.fileobj for key, _ in selector.select(_WATCH_SECONDS)}
                overloaded = self.emulator.stats()["overloaded"]
                if (lost := overloaded - self.overloaded) > 0:
                    said = "overloaded: lost %d packets without a fault; lower the rates"
                    _log.warning(said, lost)
                self.overloaded = overloaded
                if ready & ends:
                    break
                if ready:
                    self._accept()
        self.lock.acquire()

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()
        except OSError as exc:  # out of descriptors: the packets go on
            _log.warning("cannot take a request: %s", exc.strerror)
            time.sleep(_WATCH_SECONDS)

    def _serve_one(self, connection: socket.socket) -> None:
        """Serves one connection with one request."""
        with connection, contextlib.suppress(OSError), connection.makefile("rwb") as stream:
            line = stream.readline(_REQUEST_BYTES)
            if not line:
                return  # is_running only connects
            try:
                request = json.loads(line)
                if request["do"] == "stop":
                    os.eventfd_write(self.stopped, 1)
                    return
                with self.lock:
                    answer = self._answer(request)
            except (ValueError, KeyError, TypeError) as exc:
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            stream.write(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "faults":
                self.emulator.set_faults(decode_faults(request["hops"]))
                return {}
            case "status":
                wanted = [Hop(*each) for each in request["hops"]]
                hops = [self.emulator.hop(hop) for hop in wanted]
                stats = self.emulator.stats() | {"pid": os.getpid()}
                return {"stats": stats, "hops": hops}
        return {"error": f"cannot do {request['do']}"}


def _find_guardian() -> int | None:
    """A pidfd of the process that holds the user namespace; None outside of one.

    It is the keeper of the user's test beds, or the first process of the namespace. When the user
    leaves a shell in a namespace, the test bed in it is lost, so the emulator must end, too.
    """
    if KEEPER in os.environ:
        return os.pidfd_open(int(os.environ[KEEPER]))
    user = os.stat("/proc/self/ns/user").st_ino
    found, pid = None, os.getppid()
    with contextlib.suppress(PermissionError):  # a process outside of our namespace
        while pid > 0 and os.stat(f"/proc/{pid}/ns/user").st_ino == user:
            found = pid
            status = Path(f"/proc/{pid}/status").read_text()
            pid = int(status.split("PPid:")[1].split()[0])
    return None if found is None or pid == 0 else os.pidfd_open(found)


def _leave_parent() -> int:
    """Continues in a child; returns a descriptor for `_detach`. The parent ends with exit code 0
    once the child is detached, and with 1 if it fails before.
    """
    reader, writer = os.pipe()
    if os.fork() > 0:
        os.close(writer)
        os._exit(0 if os.read(reader, 1) else 1)
    os.close(reader)
    os.setsid()
    return writer


def _detach(folder: Path, parent: int) -> None:
    """The fabric works: from now on its errors go into a file."""
    log = os.open(folder / "fabric.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.write(parent, b"!")
    os.close(parent)


def main(folder: Path) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    config = json.loads((folder / "fabric.json").read_text())
    guardian = _find_guardian()
    parent = _leave_parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.chdir(folder)  # the path of a Unix socket must be short
        Path(SOCKET).unlink(missing_ok=True)
        listener.bind(SOCKET)
        os.chmod(SOCKET, 0o600)
        with Emulator(**config) as emulator:
            listener.listen()
            _detach(folder, parent)
            _ControlServer(emulator, listener, guardian).serve()


# ---- Requests to it ------------------------------------------------------------------------------


_END_SECONDS = 5.0
_MODULE = "mrc.testbed.emulator"


def start(folder: Path, namespace: str, config: dict[str, Any]) -> None:
    """Start the emulator of a test bed and wait until it listens.

    Raises StateError.
    """
    (folder / "fabric.json").write_text(json.dumps(config))
    with netns.inside(namespace):
        done = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE, str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        cause = reason[-1] if reason else f"exit code {done.returncode}"
        raise StateError(f"the emulated fabric did not start: {cause}")


def ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request, and waits for the answer for as long as the emulator runs.

    Raises StateError for an error, or if the emulator ends.
    """
    try:
        with _connect(folder) as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    except OSError as exc:
        raise StateError(f"the emulated fabric in {folder} does not answer: {exc}") from exc
    if not line.endswith(b"\n"):
        raise StateError(
            f"the emulated fabric in {folder} ended before it answered: rebuild the test bed with "
            "mrc testbed up"
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise StateError(f"the emulated fabric in {folder}: {answer['error']}")
    return answer


def is_running(folder: Path) -> bool:
    try:
        with _connect(folder, waits=False):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        return True  # root runs it, or many requests wait for it


def stop(folder: Path) -> None:
    """End the emulator of a test bed, if it runs. Kills it if it does not end in 5 s."""
    try:
        with _connect(folder, waits=False) as connection:
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            pidfd = os.pidfd_open(struct.unpack("3i", credentials)[0])
            try:
                connection.sendall(b'{"do": "stop"}\n')
                if not select.select([pidfd], [], [], _END_SECONDS)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [])
            finally:
                os.close(pidfd)
    except OSError:
        return  # it has ended, or ends without its folder


@contextlib.contextmanager
def _connect(folder: Path, *, waits: bool = True) -> Iterator[socket.socket]:
    """Connects by the folder's descriptor, because the path of a Unix socket must be short."""
    where = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(waits)
            connection.connect(f"/proc/self/fd/{where}/{SOCKET}")
            yield connection
    finally:
        os.close(where)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
