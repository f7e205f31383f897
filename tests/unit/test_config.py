# SPDX-License-Identifier: Apache-2.0
"""Configurations; and that every constant and limit of the headers has its value in Python."""

from __future__ import annotations

import re
import socket
from enum import IntEnum, IntFlag
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import walls

from mrc import enums, limits, products
from mrc._ffi_build import cut_cdef
from mrc.config import (
    CcParameters,
    ContextConfig,
    Limits,
    Queues,
    Retries,
    Sockets,
    Spraying,
    Timeouts,
    TrafficClasses,
)
from mrc.connect.profiles import CcSettings
from mrc.connect.security import Security
from mrc.engine import native
from mrc.engine.native import lib
from mrc.engine.send_queue import WrOpcode
from mrc.enums import CcKind, PlaneShares, Reading, WarningKind
from mrc.errors import ConfigError
from mrc.events import ContextWarning
from mrc.linux.namespace import NetworkNamespace


def test_config__the_defaults_are_valid_and_give_up_after_about_nine_seconds() -> None:
    retries = ContextConfig().retries
    interval = 1.024e-6 * 2**retries.ack_timeout_exponent
    linear = retries.linear * interval
    exponential = sum(interval * 2**k for k in range(1, retries.exponential + 1))
    assert 8 < linear + exponential < 10


@pytest.mark.parametrize(
    ("made", "name", "values"),
    [
        (ContextConfig, "udp_port", [-1, 65536]),
        (Spraying, "evs_per_pair", [0, 65]),
        (Spraying, "burst_packets", [-1, 65]),
        (Spraying, "mtu_limit", [0, 252, 1026, 16388]),
        (Queues, "mpr", [-128, 100, 129, 4224]),
        (Queues, "sq_depth", [0, 65537]),
        (Queues, "max_wimm", [0, 1025]),
        (Queues, "max_unread", [0]),
        (Retries, "ack_timeout_exponent", [0, 25]),
        (Retries, "linear", [-1, 8]),
        (Retries, "exponential", [-1, 26]),
        (Sockets, "spin_us", [-1, 65536]),
        (Sockets, "coalesce_us", [-1, 1001]),
        (Limits, "max_pending", [0]),
        (Limits, "max_qps", [0, 65537]),
        (Timeouts, "exchange", [0.0, -1.0]),
        (Timeouts, "linger", [-1.0]),
        (TrafficClasses, "control", [-1, 64]),
        (TrafficClasses, "data", [64]),
        (TrafficClasses, "retransmission", [64]),
        (TrafficClasses, "trimmed", [0, 11, 64]),
        (TrafficClasses, "trimmed_last", [0, 7, 64]),
    ],
)
def test_config__each_value_out_of_range_is_named(made: type, name: str, values: list[int]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            made(**{name: value})


@pytest.mark.parametrize("name", ["control", "data", "retransmission"])
def test_traffic_classes__trimmed_packets_differ_from_others(name: str) -> None:
    with pytest.raises(ConfigError, match="must differ"):
        TrafficClasses(**{name: 7})


def test_readings__one_alternative_of_each_subject() -> None:
    with pytest.raises(ConfigError, match="names two alternatives of G2"):
        ContextConfig(readings=Reading.G2_A | Reading.G2_B)
    assert ContextConfig(readings=Reading.S1_A).queues.mpr == 128
    assert ContextConfig(readings=Reading.S1_A, queues=Queues(mpr=256)).queues.mpr == 256


@pytest.mark.parametrize("value", ["equal", 1, None, CcKind.NULL])
def test_config__plane_shares_of_the_wrong_kind(value: Any) -> None:
    for make in (ContextConfig, CcSettings):
        with pytest.raises(
            ConfigError,
            match=r"^plane_shares: must be PlaneShares.MEASURED or PlaneShares.EQUAL, not ",
        ):
            make(plane_shares=value)
    assert ContextConfig(plane_shares=PlaneShares.EQUAL).plane_shares is PlaneShares.EQUAL


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("link_bps", [-1, 10**13 + 1]),
        ("base_rtt_ns", [-1, 1, 999, 10**9 + 1]),
        ("target_delay_ns", [-1, 10**9 + 1]),
        ("max_cwnd", [-1, 2**30 + 1]),
        ("fi", [-1, 2**30 + 1]),
        ("eta", [-1, 2**30 + 1]),
        ("adjust_period_threshold_ns", [-1, 10**9 + 1]),
        ("adjust_bytes_threshold", [-1, 2**30 + 1]),
        ("qa_threshold_ns", [-1, 10**9 + 1]),
        ("md_threshold_ns", [-1, 10**9 + 1]),
        ("qa_gate", [-1, 17]),
        ("fi_scale", [-1, 10**9 + 1]),
        ("gamma", [-1, 10**6 + 1]),
        ("max_md_jump", [-1, 10**6 + 1]),
    ],
)
def test_profile__each_value_out_of_range_is_named(name: str, values: list[int]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            CcParameters(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["qa_threshold_ns", "md_threshold_ns"])
def test_profile__thresholds_are_at_the_target_or_above(name: str) -> None:
    least: dict[str, Any] = {"target_delay_ns": 5000, name: 5000}
    assert CcParameters(**least).fi == 0
    with pytest.raises(ConfigError, match=f"^{name}: 4999 is below target_delay_ns"):
        CcParameters(**{**least, name: 4999})


def test_profile__names_are_those_of_the_struct() -> None:
    known = {name for name, _ in native.ffi.typeof("struct mrc_cc_profile").fields}
    assert set(CcParameters.__dataclass_fields__) | {"reserved"} == known


def test_config__a_foreign_namespace_has_no_plain_loopback() -> None:
    one, other = socket.socketpair()
    with one, other:
        foreign = NetworkNamespace(one)
        ContextConfig(namespace=foreign, security=Security())
        with pytest.raises(ConfigError, match="plain_loopback"):
            ContextConfig(namespace=foreign, security=Security(plain_loopback=True))


def test_config__interfaces_are_no_string() -> None:
    with pytest.raises(ConfigError, match="interfaces: must be a sequence, not 'eth0'"):
        ContextConfig(interfaces="eth0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name", "weight"),
    [
        ("eth0", "eth0", None),
        ("10.0.0.1", "10.0.0.1", None),
        ("2001:db8::1:50", "2001:db8::1:50", None),
        ("[2001:db8::1]", "2001:db8::1", None),
        ("wwan0:backup", "wwan0", 0),
        ("10.0.0.1:backup", "10.0.0.1", 0),
        ("[2001:db8::1]:backup", "2001:db8::1", 0),
        ("[fe80::1]:50", "fe80::1", 50),
        ("wwan0.7:50", "wwan0.7", 50),
        ("wwan0:5%", "wwan0", 5),
        ("wwan0:100", "wwan0", 100),
    ],
)
def test_config__weights_of_interfaces(text: str, name: str, weight: int | None) -> None:
    assert ContextConfig(interfaces=("eth1", text)).weights == {"eth1": None, name: weight}


@pytest.mark.parametrize(
    "text",
    [
        "eth0:1", "eth0:", "eth0:0", "eth0:101", "eth0:050", "eth0:\N{ARABIC-INDIC DIGIT FIVE}%",
        "eth0:spare", "2001:db8::1:backup", "1:2:3:4:5:6:7:8:50", "eth0:1:backup", ":50", "[]", "",
    ],
)  # fmt: skip
def test_config__weights_that_are_none(text: str) -> None:
    """Not even eth0:1, which may mean an alias of ifconfig."""
    with pytest.raises(ConfigError) as caught:
        ContextConfig(interfaces=(text,))
    assert str(caught.value) == (
        f"interfaces: {text!r} is no name; with a weight it is as"
        " eth0:backup, eth0:50, eth0:5% or [2001:db8::1]:backup"
    )


@pytest.mark.parametrize("again", ["eth0", "eth0:backup"])
def test_config__an_interface_twice(again: str) -> None:
    with pytest.raises(ConfigError, match=r"^interfaces: has eth0 twice$"):
        ContextConfig(interfaces=("eth0", "eth1", again))


# ---- Events as lines of a log --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warning", "line"),
    [
        (ContextWarning(WarningKind.RCVBUF_SMALL, 2, 212992),
         f"plane 2: {WarningKind.RCVBUF_SMALL.explanation} (212992 bytes granted)"),
        (ContextWarning(WarningKind.MEMORY_FAULT, 0, 1267580164),
         "a registered file became shorter while it was in use (the memory region with rkey"
         " 0x4b8dbd04)"),
        (ContextWarning(WarningKind.GUARD_REPLACED, 0, 0), WarningKind.GUARD_REPLACED.explanation),
    ],
)  # fmt: skip
def test_context_warning__says_what_its_number_is(warning: ContextWarning, line: str) -> None:
    assert str(warning) == line


# ---- Every constant of mrc.h and of agent.h has a member, and every member a constant ------------


CSRC = Path(__file__).resolve().parent.parent.parent / "csrc"
HEADERS = [name for name in ("mrc.h", "agent/protocol.h") if (CSRC / name).exists()]
PREFIXES: dict[str, tuple[type[IntEnum | IntFlag], str]] = {
    "mrc_qp_state": (enums.QpState, "MRC_QP_"),
    "mrc_ev_state": (enums.EvState, "MRC_EV_"),
    "mrc_held_by": (enums.HeldBy, "MRC_HELD_BY_"),
    "mrc_wr_opcode": (WrOpcode, "MRC_WR_"),
    "mrc_access": (enums.Access, "MRC_ACCESS_"),
    "mrc_wc_status": (enums.WcStatus, "MRC_WC_"),
    "mrc_reading": (enums.Reading, "MRC_READING_"),
    "mrc_integrity": (enums.Integrity, "MRC_INTEGRITY_"),
    "mrc_seal_mode": (enums.Seal, "MRC_SEAL_"),
    "mrc_wc_opcode": (enums.WcOpcode, "MRC_WC_"),
    "mrc_event_type": (enums.EventType, "MRC_EVENT_"),
    "mrc_event_reason": (enums.EventReason, "MRC_REASON_"),
    "mrc_warning": (enums.WarningKind, "MRC_WARNING_"),
    "mrc_cc_kind": (enums.CcKind, "MRC_CC_"),
    "mrc_plane_shares": (enums.PlaneShares, "MRC_SHARES_"),
    "mrc_command_op": (enums.CommandOp, "MRC_COMMAND_"),
}
if rdma_cm := products.load("mrc.agent.rdma_cm"):  # not in a tree without programs
    PREFIXES |= {
        "mrc_agent_kind": (import_module("mrc.agent.steering").AgentKind, "MRC_AGENT_"),
        "mrc_agent_function": (import_module("mrc.agent.socket").AgentFunction, "MRC_AGENT_"),
        "mrc_agent_cm_call": (rdma_cm.CmCall, "MRC_AGENT_CM_"),
        "mrc_agent_cm_event": (rdma_cm.CmEvent, "MRC_AGENT_CM_"),
    }


def declared() -> dict[str, list[str]]:
    """The constants of every enum of the cdefs, by the enum's name."""
    cdefs = "".join(cut_cdef((CSRC / header).read_text()) for header in HEADERS)
    text = re.sub(r"/\*.*?\*/", "", cdefs, flags=re.DOTALL)
    return {
        name: re.findall(r"MRC_\w+", body)
        for name, body in re.findall(r"enum (\w+) \{(.*?)\};", text, flags=re.DOTALL)
    }


def test_enums__every_enum_of_the_header_is_known() -> None:
    assert set(declared()) == set(PREFIXES)


@pytest.mark.parametrize("name", PREFIXES)
def test_enums__members_and_values_match_c(name: str) -> None:
    kind, prefix = PREFIXES[name]
    constants = declared()[name]
    assert {prefix + member.name: int(member) for member in kind if member.name} == {
        constant: getattr(lib, constant) for constant in constants
    }


@pytest.mark.parametrize("member", [*enums.WcStatus, *enums.WarningKind, *enums.EventReason])
def test_explanation__every_member_has_one(
    member: enums.WcStatus | enums.WarningKind | enums.EventReason,
) -> None:
    assert member.explanation


# ---- Every limit equals its value in C -----------------------------------------------------------


OF_PYTHON = {"MAX_MPR", "MAX_ENGINES", "MAX_BINS", "MIN_BIN_NS"}


@pytest.mark.parametrize("name", sorted({n for n in vars(limits) if n.isupper()} - OF_PYTHON))
def test_limits__are_those_of_c(name: str) -> None:
    assert getattr(limits, name) == getattr(lib, f"MRC_{name}")


@walls.needs("programs")
@pytest.mark.parametrize("name", ["AGENT_CM_PRIVATE", "AGENT_CM_CHILD"])
def test_limits__of_rdma_cm(name: str) -> None:
    assert getattr(rdma_cm, name) == getattr(lib, f"MRC_{name}")
