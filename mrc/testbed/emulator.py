# SPDX-License-Identifier: Apache-2.0
"""The process of an emulated fabric: the only importer of the compiled emulator.

It starts inside the fabric's namespace with the test bed's folder as its argument. As soon as it
listens on a Unix socket in that folder, it detaches from its parent. One thread moves packets, in
C. Other threads answer requests from `mrc.testbed.control`: each is a line of JSON, and so is each
answer. A thread waits for its client without a limit: the client's machine may stand still.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mrc._emu import ffi, lib
from mrc.testbed.hops import FAULT_KINDS, HOP_KINDS, HOST_UP, SOCKET, Hop, decode_faults
from mrc.testbed.names import interface_name
from mrc.testbed.rootless import KEEPER

_WATCH_SECONDS = 1.0
_REQUEST_BYTES = 1 << 24

_log = logging.getLogger("mrc.testbed")


class Emulator:
    """Owns one `mrc_emu` and the thread that runs it. A context manager."""

    def __init__(self, config: dict[str, int], links: list[Any], absent: list[Any]) -> None:
        """`links`: hops that differ from their tier, with their properties. `absent`: hops that do
        not exist. Raises OSError.
        """
        planes, hosts = range(1, config["planes"] + 1), range(config["hosts"])
        missing = {(hop.end, hop.plane) for hop in map(Hop._make, absent) if hop.kind == HOST_UP}
        ports = [(host, plane) for plane in planes for host in hosts]
        self._names = [interface_name(*port) for port in ports if port not in missing]
        self._failing: set[int] = set()
        out = ffi.new("mrc_emu **")
        code = lib.mrc_emu_create(
            ffi.new("struct mrc_emu_config *", config),
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
            lib.mrc_emu_set_link(self._emu, self._number(Hop(*hop)), *properties)
        for hop in absent:
            lib.mrc_emu_remove_hop(self._emu, self._number(Hop(*hop)))
        self._thread = threading.Thread(target=lib.mrc_emu_run, args=(self._emu,))

    def __enter__(self) -> Emulator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        lib.mrc_emu_stop(self._emu)
        self._thread.join()
        lib.mrc_emu_destroy(self._emu)

    def set_faults(self, wanted: dict[Hop, list[tuple[str, int, int]]]) -> None:
        """Sets the faults of these hops and clears those of all other hops.

        Raises ValueError.
        """
        numbered = {self._number(hop): faults for hop, faults in wanted.items()}
        for number in self._failing - set(numbered):
            lib.mrc_emu_set_faults(self._emu, number, ffi.NULL, 0)
        for number, faults in numbered.items():
            rows = [{"kind": FAULT_KINDS.index(kind), "a": a, "b": b} for kind, a, b in faults]
            array = ffi.new("struct mrc_emu_fault[]", rows)
            if lib.mrc_emu_set_faults(self._emu, number, array, len(rows)) < 0:
                raise ValueError(f"the emulator refuses {faults}")
        self._failing = set(numbered)

    def stats(self) -> dict[str, Any]:
        """The fields of `struct mrc_emu_stats`. `overloaded` includes drops in the hosts' stacks,
        which the emulator does not see.
        """
        stats = ffi.new("struct mrc_emu_stats *")
        lib.mrc_emu_ask(self._emu, stats)
        found = _fields(stats)
        found["late"] = list(found["late"])
        found["overloaded"] += sum(_dropped(self._names))
        return found

    def hop(self, hop: Hop) -> dict[str, int]:
        """The fields of `struct mrc_emu_hop`."""
        info = ffi.new("struct mrc_emu_hop *")
        lib.mrc_emu_ask_hop(self._emu, self._number(hop), info)
        return _fields(info)

    def _number(self, hop: Hop) -> int:
        kind = HOP_KINDS.index(hop.kind)
        number = int(lib.mrc_emu_hop_number(self._emu, kind, hop.plane, hop.switch, hop.end))
        if number < 0:
            raise ValueError(f"no {hop} in this fabric")
        return number


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name, _ in ffi.typeof(struct).item.fields}


def _dropped(names: list[str]) -> list[int]:
    """Packets that the kernel dropped at each interface, in both directions."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    rows = (line.replace(":", " ").split() for line in lines)
    return [int(row[4]) + int(row[12]) for row in rows if row[0] in names]


class _Server(Struct):
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
                self._warn()
                if ready & ends:
                    break
                if ready:
                    self._accept()
        self.lock.acquire()

    def _warn(self) -> None:
        overloaded = self.emulator.stats()["overloaded"]
        if overloaded > self.overloaded:
            lost = overloaded - self.overloaded
            _log.warning("overloaded: lost %d packets without a fault; lower the rates", lost)
        self.overloaded = overloaded

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
            _Server(emulator, listener, guardian).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
