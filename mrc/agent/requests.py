# SPDX-License-Identifier: Apache-2.0
"""The control functions of MRC's C interface (csrc/verbs/mrc_ctl.h), for all programs of a host."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mrc.agent import steering
from mrc.agent.attached import Attached
from mrc.agent.ev_values import Ev, ev_of, names_of
from mrc.agent.formats import Formats, RefusedError
from mrc.agent.probing import Probe, Probing
from mrc.agent.profiles import MAX_EVS, CcProfiles, EvProfiles, ev_in
from mrc.agent.steering import read_array, read_struct, struct_bytes, text_of
from mrc.aio.end import End
from mrc.aio.qp import QP
from mrc.control.profiles import CcProfile, EvProfile, Profiles
from mrc.engine.native import lib
from mrc.enums import AgentFunction, AgentKind, EvState
from mrc.errors import InUseError, MrcError
from mrc.events import EvEvent
from mrc.fabric.hostconfig import HostConfig, unpack_address

_MOST_FIELDS = 256
_STATES = {
    EvState.GOOD: int(lib.MRC_API_EV_GOOD),
    EvState.ASSUMED_BAD: int(lib.MRC_API_EV_ASSUMED_BAD),
    EvState.DENIED: int(lib.MRC_API_EV_DENIED),
}


class Control:
    """What the programs of a host control together."""

    def __init__(
        self,
        ev_profiles: Profiles[EvProfile],
        cc_profiles: Profiles[CcProfile],
        host: HostConfig | None,
        connect: Callable[[str], Awaitable[QP]],
    ) -> None:
        self.formats = Formats()
        self.evs = EvProfiles(ev_profiles, self.formats, names_of(host))
        self.cc = CcProfiles(cc_profiles)
        self._probing = Probing(connect)
        self._watchers: set[Attached] = set()

    def forget(self, program: Attached) -> None:
        """A program has ended."""
        self._watchers.discard(program)

    async def request(self, program: Attached, function: int, body: bytes) -> tuple[int, bytes]:
        """A call: 0 and its results, or -errno and a line for the program's user.

        Raises ProtocolError.
        """
        try:
            return 0, await self._call(program, function, body)
        except RefusedError as error:
            number, reason = error.number, str(error)
        except InUseError as error:
            number, reason = errno.EBUSY, str(error)
        except MrcError as error:
            number, reason = errno.EINVAL, str(error)
        return -number, steering.line_of(reason)

    async def _call(self, program: Attached, function: int, body: bytes) -> bytes:
        match function:
            case AgentFunction.MODIFY_FORMAT:
                head, _ = read_struct("mrc_agent_format", body)
                self.formats.modify(head)
            case AgentFunction.QUERY_FORMAT:
                head, _ = read_struct("mrc_agent_format", body)
                return struct_bytes("mrc_agent_format", self.formats.query(head))
            case AgentFunction.MODIFY_EVS:
                head, rest = read_struct("mrc_agent_evs", body)
                entries, rest = read_array("mrc_api_ev_entry", head.n_entries, MAX_EVS, rest)
                fields, _ = read_array("mrc_api_ev_field", head.n_fields, _MOST_FIELDS, rest)
                await self.evs.modify(head, entries, fields)
            case AgentFunction.QUERY_EVS:
                head, rest = read_struct("mrc_agent_evs", body)
                given, _ = read_array("mrc_api_ev_entry", head.n_entries, MAX_EVS, rest)
                return self._query_evs(head, given)
            case AgentFunction.MODIFY_CC:
                head, _ = read_struct("mrc_agent_cc", body)
                self.cc.modify(head, text_of(head.algorithm))
            case AgentFunction.QUERY_CC:
                head, _ = read_struct("mrc_agent_cc", body)
                return struct_bytes("mrc_agent_cc", self.cc.query(head))
            case AgentFunction.WATCH_EVS:
                self._watchers.add(program)
            case AgentFunction.PROBE:
                return await self._probe(program, body)
            case _:
                raise RefusedError(errno.EOPNOTSUPP, f"the agent knows no function {function}")
        return b""

    def _query_evs(self, head: Any, given: Sequence[Any]) -> bytes:
        answer, entries = self.evs.query(head, given)
        fields = self.evs[int(head.id)].fields
        parts = [struct_bytes("mrc_agent_evs", answer)]
        parts += [struct_bytes("mrc_api_ev_entry", each) for each in entries]
        parts += [struct_bytes("mrc_api_ev_field", each._asdict()) for each in fields]
        return b"".join(parts)

    async def _probe(self, program: Attached, body: bytes) -> bytes:
        head, rest = read_struct("mrc_agent_probe", body)
        probed, _ = read_array("mrc_agent_probed", head.n_probes, MAX_EVS, rest)
        probes = [
            Probe(
                int(each.id),
                program.address_of(unpack_address(bytes(each.dgid)))[1],
                ev_in(each.ev),
            )
            for each in probed
        ]
        answers = await self._probing.probe(probes, max(1e-6, head.timeout_ns / 1e9))
        return b"".join(
            struct_bytes(
                "mrc_api_answer",
                {"id": each.number, "port": each.plane, "rtt_ns": min(each.rtt_ns, 0xFFFFFFFF)},
            )
            for each in answers
        )

    # ---- Events ---------------------------------------------------------------------------

    async def watch(self, end: End) -> None:
        """Reports the changes of a QP's EVs until it ends."""
        number = self.evs.number_of(end.ev_profile)
        async for event in end.events.reader():
            if not isinstance(event, EvEvent):
                continue
            attr = end.evs[event.index]
            ev = ev_of(event.plane, attr.usids, attr.attr.sport)
            self._note(number, ev, event.state)

    def _note(self, number: int | None, ev: Ev, state: EvState) -> None:
        if number is None:
            return  # programs know profiles by numbers
        evs = self.evs[number]
        if state is EvState.ASSUMED_BAD:
            evs.bad.add(ev)
        else:
            evs.bad.discard(ev)
        if not evs.events & _STATES.get(state, 0):
            return
        fields = {
            "profile": number,
            "ev": {"value": ev.value, "port": ev.plane},
            "state": _STATES[state],
        }
        body = struct_bytes("mrc_agent_ev_event", fields)
        for program in self._watchers:
            program.send(AgentKind.EV_EVENT, body=body)
