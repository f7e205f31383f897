# SPDX-License-Identifier: Apache-2.0
"""The enums of csrc/mrc.h for Python. Pure: a test compares each value with C."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from mrc.errors import ConfigError


class Named(IntEnum):
    """Members whose text is their name."""

    def __str__(self) -> str:
        return self.name


class Explained(Named):
    """Members with their meaning in a few words."""

    explanation: str

    def __new__(cls, value: int, explanation: str = "") -> Explained:
        member = int.__new__(cls, value)
        member._value_, member.explanation = value, explanation
        return member


class Access(IntFlag):
    """Allowed uses of a memory region. LOCAL_READ is always implied."""

    LOCAL_READ = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class Reading(IntFlag):
    """Readings of the specification that an engine follows in place of its own.

    `mrc conform readings` and csrc/core/specification.md explain them.
    """

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The names, such as C3-B, of those among them that both ends of a QP must follow."""
        return tuple(str(each.name).replace("_", "-") for each in self & SHARED_READINGS)

    OURS = 0
    # tools/readings: python
    C3_B = 1
    """It puts the source port into the low half of EVs in answers."""
    C4_A = 2
    """It drops a PSN beyond the window silently."""
    S5_B = 4
    """It sends no transport ACK while an earlier packet is missing."""
    S8_B = 8
    """It sends no mark in answers to EV probes."""
    C6_B = 16
    """It puts the operation of endpoint responses into bits 5:4, and no mark."""
    G2_A = 32
    """It sends a SACK after 16 KiB."""
    G2_B = 64
    """It sends a SACK after 4 KiB."""
    G5_A = 128
    """It lets a marked EV sit out one turn; a packet ends one skip."""
    G10_B = 256
    """It sends no NACK for a packet trimmed within its RETH."""
    G15_B = 512
    """It reflects timestamps as they came."""
    S1_A = 1024
    """It grants 128 PSNs unless Queues.mpr is set."""
    S4_B = 2048
    """It calls EVs bad whose packets all come marked."""


SHARED_READINGS = Reading.C3_B | Reading.C6_B
# end


class QpState(Named):
    """State of a QP."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    ERROR = 4


class EvState(Named):
    """State of an entropy value."""

    GOOD = 0
    SKIP = 1
    ASSUMED_BAD = 2
    DENIED = 3
    UNPROVEN = 4


class HeldBy(Named):
    """What keeps a QP from sending more."""

    NOTHING = 0
    """It may send: the processor decides."""
    PROGRAM = 1
    """Everything posted was sent."""
    PEER = 2
    """The peer's window of PSNs or of WRITE_IMMs is full."""
    NETWORK = 3
    """The congestion windows are full, or no plane carries data."""
    SOCKET = 4
    """The sockets are full: the link, or its queue in this host."""


class PairState(Named):
    """Whether a pair of ports, one of each host, is a plane of a QP, and if not, why."""

    USED = 0
    """It is a plane that carries data."""
    BACKUP = 1
    """It is a plane that carries data only while no other does."""
    WAITS = 2
    """It is not needed: both interfaces have another pair."""
    TRYING = 3
    """It is being tried."""
    SILENT = 4
    """No path of it answers."""
    UNREACHABLE = 5
    """The kernel does not send there."""
    SMALL = 6
    """It does not carry the packets of the QP."""
    DENIED = 7
    """The EV profile, or the program, denies all its paths."""
    UNFIT = 8
    """The addresses cannot be a pair."""
    LIMIT = 9
    """A limit on pairs, planes, source ports or probes was reached."""


class WcOpcode(Named):
    """Operation that a completion reports."""

    WRITE = 0
    WRITE_IMM = 1
    RECV_IMM = 2


class WcStatus(Explained):
    """How a work request ended."""

    SUCCESS = 0, "done"
    LOC_PROT_ERR = 1, "the local memory region does not cover the range"
    WR_FLUSH_ERR = 2, "the QP ended before the work request completed"
    REM_ACCESS_ERR = 3, "the peer has no writable memory region for this range and key"
    REM_INV_REQ_ERR = 4, "the peer refused the request"
    REM_OP_ERR = 5, "the peer failed to carry out the request"
    RETRY_EXC_ERR = 6, "no path to the peer answers"


class EventType(Named):
    """Kind of a `struct mrc_event`."""

    REPLY = 0
    WC = 1
    QP_ERROR = 2
    EV_STATE = 3
    PLANE = 4
    PROBE = 5
    WARNING = 6
    PORT = 7
    PLANE_SHARE = 8
    LOST = 9


class EventReason(Explained):
    """Why an EV, a plane or a port changed its state."""

    NONE = 0, "no reason given"
    CONTROLLER = 1, "the controller set the state"
    LOSS = 2, "a packet was lost on it"
    PEER = 3, "the peer reported it as bad"
    SPURIOUS = 4, "the packet that counted as lost had arrived"
    PLANE = 5, "its whole plane is silent, so the EV is not to blame"
    FLOOR = 6, "too few other EVs are left"
    PROBES = 7, "it answered several probes in a row"
    SILENCE = 8, "other planes delivered packets that were sent later"
    TIMEOUT = 9, "no plane delivers, so every plane is tried again"
    SEND = 10, "the kernel refused to send there"
    OWN_PORT = 11, "a port of this host changed"
    PEER_PORT = 12, "a port of the peer changed: the peer reported it or probes found it"
    DELIVERY = 13, "its delivery compared with the other planes"


class WarningKind(Explained):
    """Subject of a warning of the datapath."""

    RCVBUF_SMALL = 0, "the kernel limits the receive buffer: raise net.core.rmem_max"
    SNDBUF_SMALL = 1, "the kernel limits the transmit buffer: raise net.core.wmem_max"
    MEMORY_FAULT = 2, "a registered file became shorter while it was in use"
    GUARD_REPLACED = (
        3,
        "the program replaced mrc's SIGBUS handler, so the process may die when a registered file"
        " becomes shorter: install your handler before the first registration",
    )


class Integrity(Named):
    """How packets are protected: by the ICRC, or by UDP's checksum alone."""

    ICRC = 0
    UDP = 1


class Seal(Named):
    """How packets are sealed: not, authenticated, or encrypted as well."""

    NONE = 0
    AUTH = 1
    AEAD = 2


class CcKind(Named):
    """Congestion control of a QP: delay-based, none, or MRC's own NSCC."""

    DELAY = 0
    NULL = 1
    NSCC = 2


class PlaneShares(Named):
    """Share of each plane: by its measured delivery, or the same for all planes."""

    MEASURED = 0
    EQUAL = 1

    @classmethod
    def check(cls, value: object) -> None:
        """Raises ConfigError for anything else: numbers and names are not accepted."""
        if not isinstance(value, cls):
            raise ConfigError(f"plane_shares: {value!r:.40} is not a PlaneShares")


class CommandOp(Named):
    """Operation of a `struct mrc_command`."""

    MR_REGISTER = 0
    MR_DEREGISTER = 1
    QP_CREATE = 2
    QP_MODIFY = 3
    QP_SET_EVS = 4
    QP_SET_PEER = 5
    QP_SET_SEAL = 6
    QP_DESTROY = 7
    QP_POST = 8
    QP_POST_MANY = 9
    QP_PROBE_EV = 10
    QP_SET_EV_STATE = 11
    QP_QUERY = 12
    QP_QUERY_EVS = 13
    COUNTERS = 14
    DROPS = 15
    TRACE = 16
    PORT_UP = 17
    QP_SET_MPR = 18
    RECORD_START = 19
    RECORD_STOP = 20
    PORT_OPEN = 21
    PORT_CLOSE = 22
    MSG_OPEN = 23
    MSG_CONNECT = 24
    MSG_IDLE = 25
    MSG_FAIL = 26
    MSG_CLOSE = 27
    QP_SET_RETRIES = 28
    QP_SET_WEIGHT = 29
    QP_SET_YIELDING = 30
