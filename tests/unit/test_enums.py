# SPDX-License-Identifier: Apache-2.0
"""Every constant of mrc.h and of agent.h has a member, and every member a constant."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

from mrc import enums
from mrc._ffi_build import cut_cdef
from mrc.engine.native import lib

CSRC = Path(__file__).resolve().parent.parent.parent / "csrc"
HEADERS = [name for name in ("mrc.h", "readings.h", "agent/protocol.h") if (CSRC / name).exists()]
PREFIXES: dict[str, tuple[type[IntEnum | IntFlag], str]] = {
    "mrc_qp_state": (enums.QpState, "MRC_QP_"),
    "mrc_ev_state": (enums.EvState, "MRC_EV_"),
    "mrc_wr_opcode": (enums.WrOpcode, "MRC_WR_"),
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
    "mrc_agent_kind": (enums.AgentKind, "MRC_AGENT_"),
    "mrc_agent_function": (enums.AgentFunction, "MRC_AGENT_"),
    "mrc_agent_cm_call": (enums.CmCall, "MRC_AGENT_CM_"),
    "mrc_agent_cm_event": (enums.CmEvent, "MRC_AGENT_CM_"),
}


if "agent/protocol.h" not in HEADERS:  # a tree without programs
    PREFIXES = {name: each for name, each in PREFIXES.items() if "agent" not in name}


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
