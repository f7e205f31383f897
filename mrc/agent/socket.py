# SPDX-License-Identifier: Apache-2.0
"""The Unix socket at which programs of this host find their agent.

An abstract name belongs to the network namespace, as the agent does, and leaves nothing behind.
Everybody can connect to it, and everybody can take it: both sides ask the kernel who the other is.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import logging
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

import msgspec
from msgspec import Struct, field

from mrc.agent import steering
from mrc.agent.steering import AgentFrame, AgentKind
from mrc.errors import ConfigError, InUseError
from mrc.linux import system
from mrc.results import Result

logger = logging.getLogger("mrc.agent")

ENVIRONMENT = "MRC_AGENT"
DEFAULT = "@mrc-agent"
_BACKLOG = 64
_LOOK_SECONDS = 1.0  # between two looks at an agent that has not answered
_MOST_LOOKS = 60  # of a busy machine
_PAUSE_SECONDS = 0.25
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # a later accept may succeed
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class AgentFunction(IntEnum):
    """A request of a program (csrc/agent/protocol.h)."""

    MODIFY_FORMAT = 1
    QUERY_FORMAT = 2
    MODIFY_EVS = 3
    QUERY_EVS = 4
    MODIFY_CC = 5
    QUERY_CC = 6
    WATCH_EVS = 7
    PROBE = 8
    PROFILES = 9


class Credentials(Struct, frozen=True):
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


def name_of(environ: Mapping[str, str]) -> str:
    """The name of the socket: "@name" is abstract, anything else a path."""
    return environ.get(ENVIRONMENT) or DEFAULT


def address_of(name: str) -> bytes:
    """The name as an address of a socket."""
    return b"\0" + name[1:].encode() if name.startswith("@") else os.fsencode(name)


def listen(name: str) -> socket.socket:
    """Opens the socket; raises InUseError when another agent has it, ConfigError."""
    if not name.startswith("@"):
        try:  # a killed agent may have left it
            if Path(name).is_socket() and not is_open(name):
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"socket {name}: {error.strerror or error}") from error
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        opened.bind(address_of(name))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            is_open(name)  # raises ConfigError
            raise InUseError(f"an agent of this host runs already (socket {name})") from error
        raise ConfigError(f"socket {name}: {error.strerror or error}") from error
    return opened


async def accept(opened: socket.socket) -> socket.socket:
    """The next program that connects. Waits while this process has no descriptor or memory for it,
    so that the attached programs go on.
    """
    warned = False
    while True:
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(opened)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            if not warned:
                logger.warning("cannot let further programs in: %s", error.strerror)
            warned = True
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return connection


def is_open(name: str) -> bool:
    """Whether an agent listens there; raises TakenError if it is not to be trusted."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trial:
        trial.setblocking(False)
        try:
            trial.connect(address_of(name))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
        _check_owner(trial, name)
    return True


class TakenError(ConfigError):
    """Another user listens at the socket."""

    remedy = f"end that, or name another with {ENVIRONMENT}"

    def __init__(self, name: str, owner: Credentials) -> None:
        self.found = f"socket {name}: process {owner.pid} of user {owner.uid} has taken it"
        super().__init__(f"{self.found}: {self.remedy}")


def _check_owner(connection: socket.socket, name: str) -> None:
    """Raises TakenError unless root or this user listens: anybody can take an abstract name."""
    owner = credentials_of(connection)
    if owner.uid not in (0, os.geteuid()):
        raise TakenError(name, owner)


def _ask(name: str, seconds: float, looks: int = 1) -> AgentFrame:
    """The answer of the agent to a request for its profiles; raises OSError, ConfigError.

    Waits `seconds`, and as long again, up to `looks` times, for an agent that is not stopped.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(seconds)
        asking.connect(address_of(name))
        _check_owner(asking, name)
        asking.send(steering.pack(AgentKind.REQUEST, AgentFunction.PROFILES))
        packet = _received(asking, looks)
    if not packet:
        raise ConnectionResetError("the agent has ended")
    return steering.unpack(packet)


def _received(asking: socket.socket, looks: int) -> bytes:
    for _ in range(looks):
        with suppress(TimeoutError):
            return asking.recv(steering.MAX_FRAME)
        agent = system.process(credentials_of(asking).pid)
        if agent.is_stopped or agent.is_traced:
            break
    raise TimeoutError


def answers(name: str, seconds: float) -> bool:
    """Whether an agent serves there; raises ConfigError. One that starts has its socket before its
    TCP port: it may find that port in use, and end.
    """
    try:
        _ask(name, seconds)
    except OSError:
        return False
    return True


def profiles(name: str) -> AgentProfiles:
    """The profiles of the agent that listens there; raises ConfigError."""
    try:
        frame = _ask(name, _LOOK_SECONDS, _MOST_LOOKS)
    except TimeoutError as error:
        raise ConfigError(f"the agent at socket {name} does not answer: is it stopped?") from error
    except OSError as error:
        text = f"no agent answers at socket {name}: start it with mrc agent"
        raise ConfigError(text) from error
    if frame.kind is AgentKind.REFUSED:
        raise ConfigError(frame.body.decode(errors="replace"))
    return msgspec.json.decode(frame.body, type=AgentProfiles)


def agent_pid(name: str) -> int:
    """The process that listens there; raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address_of(name))
        return credentials_of(asking).pid


def credentials_of(connection: socket.socket) -> Credentials:
    """Who is at the other end: it has connected, or listens."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(found))


def group_number(name: str) -> int:
    """The number of a group; raises ConfigError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"group {name}: there is no such group on this host") from None


def may_attach(credentials: Credentials, group: int | None) -> bool:
    """Whether a process may use this agent: the same user's, root's, or one of the group."""
    if credentials.uid in (os.geteuid(), 0) or group == credentials.gid:
        return True
    try:  # its supplementary groups: it is connected, so its pid is not reused
        lines = Path(f"/proc/{credentials.pid}/status").read_text().splitlines()
    except OSError:
        return False
    found = next((line for line in lines if line.startswith("Groups:")), "")
    return group is not None and str(group) in found.split()[1:]


# ---- What the agent tells of itself -------------------------------------------------------------


class EvProfileRow(Struct, frozen=True, kw_only=True):
    """A profile of EVs."""

    name: str
    """Its name; a number if a program made it through MRC's C interface."""
    state: str
    """INIT, OFFLINE or ONLINE."""
    qps: int
    """QPs that use it."""
    paths: tuple[str, ...]
    """Names or patterns of its paths."""
    denied: tuple[str, ...]
    """Names or patterns of paths that are denied."""


class CcProfileRow(Struct, frozen=True, kw_only=True):
    """A profile of congestion control."""

    name: str
    """Its name."""
    state: str
    """INIT, OFFLINE or ONLINE."""
    qps: int
    """QPs that use it."""
    kind: str
    """The congestion control."""


class CmPortRow(Struct, frozen=True, kw_only=True):
    """A port of rdma_cm at which a program listens."""

    port: int
    """Its number. It is not a port of TCP."""
    address: str
    """The address to which it is bound; empty: any."""
    pid: int
    """The process of the program."""


class AgentProfiles(Result, frozen=True, kw_only=True):
    """The profiles of a host's agent: of each kind the first 256."""

    ev_profiles: tuple[EvProfileRow, ...]
    """Profiles of EVs."""
    cc_profiles: tuple[CcProfileRow, ...]
    """Profiles of congestion control."""
    rdma_cm: tuple[CmPortRow, ...] = ()
    """Ports at which programs started with `mrc run --rc` listen."""
    options: dict[str, str] = field(default_factory=dict)
    """The options with which the agent was started; of a file the SHA-256 of its content."""
