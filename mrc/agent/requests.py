# SPDX-License-Identifier: Apache-2.0
"""The control functions of MRC's C interface (csrc/verbs/mrc_api.h), for all programs of a host."""

from __future__ import annotations

import asyncio
import errno
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mrc.agent import steering
from mrc.agent.peers import described
from mrc.agent.profiles import (
    MAX_EVS,
    CcProfiles,
    EvProfiles,
    EvValue,
    Formats,
    RequestError,
    ev_in,
    ev_of,
    names_of,
)
from mrc.agent.steering import read_array, read_struct, struct_bytes, text_of
from mrc.aio.qp import QP
from mrc.connect.profiles import CcProfile, ContextProfiles, EvProfile
from mrc.engine.native import lib
from mrc.enums import AgentFunction, AgentKind, EvState
from mrc.errors import InUseError, MrcError
from mrc.events import EvEvent
from mrc.fabric.hostconfig import HostConfig, unpack_address

if TYPE_CHECKING:
    from mrc.agent.program import ProgramContext

_MOST_FIELDS = 256
_MOST_QPS = 64  # one for each host that was probed lately
_STATES = {
    EvState.GOOD: int(lib.MRC_API_EV_GOOD),
    EvState.ASSUMED_BAD: int(lib.MRC_API_EV_ASSUMED_BAD),
    EvState.DENIED: int(lib.MRC_API_EV_DENIED),
}


class Requests:
    """What the programs of a host control together."""

    def __init__(
        self,
        ev_profiles: ContextProfiles[EvProfile],
        cc_profiles: ContextProfiles[CcProfile],
        host: HostConfig | None,
        connect: Callable[[str], Awaitable[QP]],
    ) -> None:
        self.formats = Formats()
        self.evs = EvProfiles(ev_profiles, self.formats, names_of(host))
        self.cc = CcProfiles(cc_profiles)
        self._prober = EvProber(connect)
        self._watchers: set[ProgramContext] = set()

    def forget(self, program: ProgramContext) -> None:
        """A program has ended."""
        self._watchers.discard(program)

    async def request(
        self, program: ProgramContext, function: int, body: bytes
    ) -> tuple[int, bytes]:
        """A call: 0 and its results, or -errno and a line for the program's user.

        Raises ProtocolError.
        """
        try:
            return 0, await self._call(program, function, body)
        except RequestError as error:
            number, reason = error.number, str(error)
        except InUseError as error:
            number, reason = errno.EBUSY, str(error)
        except MrcError as error:
            number, reason = errno.EINVAL, str(error)
        return -number, steering.line_of(reason)

    async def _call(self, program: ProgramContext, function: int, body: bytes) -> bytes:
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
                raise RequestError(errno.EOPNOTSUPP, f"the agent knows no function {function}")
        return b""

    def _query_evs(self, head: Any, given: Sequence[Any]) -> bytes:
        answer, entries = self.evs.query(head, given)
        fields = self.evs[int(head.id)].fields
        parts = [struct_bytes("mrc_agent_evs", answer)]
        parts += [struct_bytes("mrc_api_ev_entry", each) for each in entries]
        parts += [struct_bytes("mrc_api_ev_field", each._asdict()) for each in fields]
        return b"".join(parts)

    async def _probe(self, program: ProgramContext, body: bytes) -> bytes:
        head, rest = read_struct("mrc_agent_probe", body)
        probed, _ = read_array("mrc_agent_probed", head.n_probes, MAX_EVS, rest)
        probes = [
            EvProbe(
                int(each.id),
                program.address_of(unpack_address(bytes(each.dgid)))[1],
                ev_in(each.ev),
            )
            for each in probed
        ]
        answers = await self._prober.probe(probes, max(1e-6, head.timeout_ns / 1e9))
        return b"".join(
            struct_bytes(
                "mrc_api_answer",
                {"id": each.number, "port": each.plane, "rtt_ns": min(each.rtt_ns, 0xFFFFFFFF)},
            )
            for each in answers
        )

    # ---- Events ---------------------------------------------------------------------------

    async def watch(self, end: QP) -> None:
        """Reports the changes of a QP's EVs until it ends."""
        number = self.evs.number_of(end.ev_profile)
        async for event in end.events():
            if not isinstance(event, EvEvent):
                continue
            attr = end._paths[event.index]
            ev = ev_of(event.plane, attr.usids, attr.attr.sport)
            self._report(number, ev, event.state)

    def _report(self, number: int | None, ev: EvValue, state: EvState) -> None:
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


# ---- Probes of EVs ------------------------------------------------------------------------------


class EvProbe(Struct, frozen=True):
    """One EV towards a host."""

    number: int
    host: str
    ev: EvValue


class EvProbeAnswer(Struct, frozen=True):
    """The answer to a probe."""

    number: int
    plane: int
    rtt_ns: int


class EvProber:
    """Keeps a QP to each host that was probed. `connect` makes one."""

    def __init__(self, connect: Callable[[str], Awaitable[QP]]) -> None:
        self._connect = connect
        self._qps: OrderedDict[str, asyncio.Future[QP]] = OrderedDict()

    async def probe(self, probes: Iterable[EvProbe], timeout: float) -> list[EvProbeAnswer]:
        """The answers that came within the time, in order of arrival. Raises RequestError."""
        by_host: dict[str, list[EvProbe]] = {}
        for each in probes:
            by_host.setdefault(each.host, []).append(each)
        answers: list[EvProbeAnswer] = []

        async def one(qp: QP, index: int, probe: EvProbe) -> None:
            (result,) = await qp.probe_evs([index], timeout=timeout)
            if result.rtt_ns is not None:
                answers.append(EvProbeAnswer(probe.number, probe.ev.plane, result.rtt_ns))

        async def all_to(host: str, wanted: list[EvProbe]) -> None:
            qp = await self._qp(host)
            places = {
                ev_of(each.plane, each.usids, each.ev >> 16): each.index for each in await qp.evs()
            }
            for each in wanted:
                if each.ev not in places:
                    raise RequestError(errno.EINVAL, f"no path to {host} has EV {each.ev}")
            await asyncio.gather(*(one(qp, places[each.ev], each) for each in wanted))

        try:
            await asyncio.gather(*(all_to(host, wanted) for host, wanted in by_host.items()))
        finally:  # closes the QPs to hosts that were not probed lately
            done = [host for host, qp in self._qps.items() if qp.done() and not qp.exception()]
            oldest = [self._qps.pop(host) for host in done[: max(0, len(done) - _MOST_QPS)]]
            await asyncio.gather(*(qp.result().close() for qp in oldest))
        return answers

    async def _qp(self, host: str) -> QP:
        """The QP to a host, which is connected if there is none."""
        found = self._qps.get(host)
        if found is not None and found.done() and (found.exception() or found.result().closed):
            found = None
        if found is None:
            found = self._qps[host] = asyncio.ensure_future(self._connect(host))
        self._qps.move_to_end(host)
        try:
            return await asyncio.shield(found)
        except (MrcError, OSError) as error:
            self._qps.pop(host, None)
            raise RequestError(errno.EHOSTUNREACH, described(error)) from error
