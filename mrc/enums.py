# SPDX-License-Identifier: Apache-2.0
"""The constants of csrc/mrc.h as Python enums. The values come from C, never from here."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from mrc.binding.native import lib


class Access(IntFlag):
    """What a memory region may be used for."""

    LOCAL_READ = lib.MRC_ACCESS_LOCAL_READ
    REMOTE_WRITE = lib.MRC_ACCESS_REMOTE_WRITE


class QpState(IntEnum):
    """State of a QP."""

    RESET = lib.MRC_QP_RESET
    INIT = lib.MRC_QP_INIT
    RTR = lib.MRC_QP_RTR
    RTS = lib.MRC_QP_RTS
    ERROR = lib.MRC_QP_ERROR


class EvState(IntEnum):
    """State of an entropy value."""

    GOOD = lib.MRC_EV_GOOD
    SKIP = lib.MRC_EV_SKIP
    ASSUMED_BAD = lib.MRC_EV_ASSUMED_BAD
    DENIED = lib.MRC_EV_DENIED


class WrOpcode(IntEnum):
    """Operation of a work request."""

    WRITE = lib.MRC_WR_WRITE
    WRITE_IMM = lib.MRC_WR_WRITE_IMM


class WcOpcode(IntEnum):
    """Operation that a completion reports."""

    WRITE = lib.MRC_WC_WRITE
    WRITE_IMM = lib.MRC_WC_WRITE_IMM
    RECV_IMM = lib.MRC_WC_RECV_IMM


class WcStatus(IntEnum):
    """How a work request ended."""

    SUCCESS = lib.MRC_WC_SUCCESS
    LOC_PROT_ERR = lib.MRC_WC_LOC_PROT_ERR
    WR_FLUSH_ERR = lib.MRC_WC_WR_FLUSH_ERR
    REM_ACCESS_ERR = lib.MRC_WC_REM_ACCESS_ERR
    REM_INV_REQ_ERR = lib.MRC_WC_REM_INV_REQ_ERR
    REM_OP_ERR = lib.MRC_WC_REM_OP_ERR
    RETRY_EXC_ERR = lib.MRC_WC_RETRY_EXC_ERR

    @property
    def explanation(self) -> str:
        """What the status means, in a few words."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    WcStatus.SUCCESS: "done",
    WcStatus.LOC_PROT_ERR: "the local memory region does not cover the range",
    WcStatus.WR_FLUSH_ERR: "the QP ended before the work request did",
    WcStatus.REM_ACCESS_ERR: "the peer's memory region does not allow the range or the key",
    WcStatus.REM_INV_REQ_ERR: "the peer refused the request",
    WcStatus.REM_OP_ERR: "the peer failed to carry out the request",
    WcStatus.RETRY_EXC_ERR: "no path to the peer answers",
}


class EventType(IntEnum):
    """Kind of a `struct mrc_event`."""

    REPLY = lib.MRC_EVENT_REPLY
    WC = lib.MRC_EVENT_WC
    QP_ERROR = lib.MRC_EVENT_QP_ERROR
    EV_STATE = lib.MRC_EVENT_EV_STATE
    PLANE = lib.MRC_EVENT_PLANE
    PROBE = lib.MRC_EVENT_PROBE
    WARNING = lib.MRC_EVENT_WARNING
    PORT = lib.MRC_EVENT_PORT
    PLANE_SHARE = lib.MRC_EVENT_PLANE_SHARE
    LOST = lib.MRC_EVENT_LOST


class EventReason(IntEnum):
    """Why an EV, a plane or a port changed its state."""

    NONE = lib.MRC_REASON_NONE
    CONTROLLER = lib.MRC_REASON_CONTROLLER
    LOSS = lib.MRC_REASON_LOSS
    PEER = lib.MRC_REASON_PEER
    SPURIOUS = lib.MRC_REASON_SPURIOUS
    PLANE = lib.MRC_REASON_PLANE
    FLOOR = lib.MRC_REASON_FLOOR
    PROBES = lib.MRC_REASON_PROBES
    SILENCE = lib.MRC_REASON_SILENCE
    TIMEOUT = lib.MRC_REASON_TIMEOUT
    SEND = lib.MRC_REASON_SEND
    OWN_PORT = lib.MRC_REASON_OWN_PORT
    PEER_PORT = lib.MRC_REASON_PEER_PORT
    DELIVERY = lib.MRC_REASON_DELIVERY

    @property
    def explanation(self) -> str:
        """What the reason means, in a few words."""
        return _REASONS[self]


_REASONS = {
    EventReason.NONE: "no reason given",
    EventReason.CONTROLLER: "the controller said so",
    EventReason.LOSS: "it lost a packet",
    EventReason.PEER: "the peer calls it bad",
    EventReason.SPURIOUS: "what it lost had arrived after all",
    EventReason.PLANE: "its whole plane is silent, and to blame",
    EventReason.FLOOR: "too few others are left",
    EventReason.PROBES: "probes were answered in a row",
    EventReason.SILENCE: "other planes delivered what was sent later",
    EventReason.TIMEOUT: "no plane is heard, and every one is tried",
    EventReason.SEND: "the system could not send there",
    EventReason.OWN_PORT: "the port of this host",
    EventReason.PEER_PORT: "the port of the peer, as it reported, or as probes found it",
    EventReason.DELIVERY: "what it carried beside the other planes",
}


class WarningKind(IntEnum):
    """What a warning of the datapath is about."""

    RCVBUF_SMALL = lib.MRC_WARNING_RCVBUF_SMALL
    SNDBUF_SMALL = lib.MRC_WARNING_SNDBUF_SMALL
    MEMORY_FAULT = lib.MRC_WARNING_MEMORY_FAULT
    GUARD_REPLACED = lib.MRC_WARNING_GUARD_REPLACED

    @property
    def explanation(self) -> str:
        """What the warning means, in a few words."""
        return _WARNINGS[self]


_WARNINGS = {
    WarningKind.RCVBUF_SMALL: "the receive buffer is smaller than wanted: raise net.core.rmem_max",
    WarningKind.SNDBUF_SMALL: "the transmit buffer is smaller than wanted: raise net.core.wmem_max",
    WarningKind.MEMORY_FAULT: "a registered file became shorter while it was in use",
    WarningKind.GUARD_REPLACED: "the program installed a SIGBUS handler after mrc's: a registered"
    " file that becomes shorter may end it; install that handler before the first registration",
}


class Integrity(IntEnum):
    """How packets are protected: by the ICRC, or by UDP's checksum alone."""

    ICRC = lib.MRC_INTEGRITY_ICRC
    UDP = lib.MRC_INTEGRITY_UDP


class CcKind(IntEnum):
    """Congestion control of a QP: delay-based, none, or MRC's own NSCC."""

    DELAY = lib.MRC_CC_DELAY
    NULL = lib.MRC_CC_NULL
    NSCC = lib.MRC_CC_NSCC


class PlaneShares(IntEnum):
    """What each plane carries: what it delivers, or the same as every other."""

    MEASURED = lib.MRC_SHARES_MEASURED
    EQUAL = lib.MRC_SHARES_EQUAL


class CommandOp(IntEnum):
    """Operation of a `struct mrc_command`."""

    MR_REGISTER = lib.MRC_COMMAND_MR_REGISTER
    MR_DEREGISTER = lib.MRC_COMMAND_MR_DEREGISTER
    QP_CREATE = lib.MRC_COMMAND_QP_CREATE
    QP_MODIFY = lib.MRC_COMMAND_QP_MODIFY
    QP_SET_EVS = lib.MRC_COMMAND_QP_SET_EVS
    QP_SET_PEER = lib.MRC_COMMAND_QP_SET_PEER
    QP_DESTROY = lib.MRC_COMMAND_QP_DESTROY
    QP_POST = lib.MRC_COMMAND_QP_POST
    QP_PROBE_EV = lib.MRC_COMMAND_QP_PROBE_EV
    QP_SET_EV_STATE = lib.MRC_COMMAND_QP_SET_EV_STATE
    QP_QUERY = lib.MRC_COMMAND_QP_QUERY
    QP_QUERY_EVS = lib.MRC_COMMAND_QP_QUERY_EVS
    COUNTERS = lib.MRC_COMMAND_COUNTERS
    DROPS = lib.MRC_COMMAND_DROPS
    TRACE = lib.MRC_COMMAND_TRACE
    PORT_UP = lib.MRC_COMMAND_PORT_UP
    QP_SET_MPR = lib.MRC_COMMAND_QP_SET_MPR
    PROBE_EVS = lib.MRC_COMMAND_PROBE_EVS
    RECORD_START = lib.MRC_COMMAND_RECORD_START
    RECORD_STOP = lib.MRC_COMMAND_RECORD_STOP
    PORT_OPEN = lib.MRC_COMMAND_PORT_OPEN
    PORT_CLOSE = lib.MRC_COMMAND_PORT_CLOSE
