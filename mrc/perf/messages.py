# SPDX-License-Identifier: Apache-2.0
"""The messages between the two ends of a test, over the mailbox of the session's QP.

client: plan                    server: ready (its memory) | refuse
client: connects the QPs of the test, each with the token of its plan as private data
                                server: connected
client: start                   server: resets its counters; started
                                the writing ends begin, each until its plan's bytes or the stop
client: stop                    server: finished, when its writes in flight have ended or take too
                                long; it comes before the stop if the plan's bytes were written
client: start again             if this was the omitted part of the test
client: end (the seconds that both ends count)
                                server: bins in pieces, if the plan has bin_ns; then result
client: plan for the next test, or the end of the session
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from mrc.connect.parse import shown
from mrc.engine.memory import RemoteMemory
from mrc.errors import MrcError, ProtocolError
from mrc.events import Immediate
from mrc.mailbox import MAX_SENT_BYTES, MailboxSession, Service
from mrc.perf.load import PerfPlan, Tally
from mrc.perf.meter import History, Meter, MeterInterval, PeerBins
from mrc.perf.results import Latency
from mrc.typed import Whole, take

# answer_bytes: a result with many changes is long.
SERVICE = Service("perf", "performance test", 5, answer_bytes=MAX_SENT_BYTES)
QP_SERVICE = "perf-qp"  # service of the QPs that carry a test's writes

Message = dict[str, Any]
_Duration = Annotated[float, Meta(ge=0, le=1e9)]


class PlanRefusedError(MrcError):
    """The server refused the plan."""


async def say(session: MailboxSession, kind: str, **body: Any) -> None:
    """Sends a message; returns when the peer has acknowledged it."""
    await session.watched(session.mailbox.send({"type": kind, **body}))


async def hear(session: MailboxSession, *kinds: str) -> Message:
    """The peer's next message, which must be one of `kinds`.

    Raises RefusedError if the peer refuses, ProtocolError for any other message.
    """
    message = await session.receive()
    kind = None if isinstance(message, Immediate) else message.get("type")
    if isinstance(message, dict) and kind == "refuse":
        raise PlanRefusedError(f"{session.qp.peer_host}: {shown(message.get('error'))}")
    if isinstance(message, Immediate) or kind not in kinds:
        raise ProtocolError(
            f"{session.qp.peer_host} sent '{shown(kind, 40)}', not {' or '.join(kinds)}"
        )
    return message


async def ask_memory(session: MailboxSession, size: int) -> tuple[dict[str, Any], RemoteMemory]:
    """Begins a test that needs so many bytes: the private data of its QPs, and the server's memory
    that they may write to.
    """
    nothing = RemoteMemory(0, 0, 0).to_dict()
    plan = PerfPlan(size=size, depth=1, seconds=0, total_bytes=size)
    await say(session, "plan", plan=plan.to_dict(), memory=nothing)
    ready = await hear(session, "ready")
    private = {"service": QP_SERVICE, "token": ready.get("token")}
    return private, RemoteMemory.from_dict(ready.get("memory"))


class PerfOutcome(Struct, frozen=True):
    """The result of one end of a test; `messages` counts the messages that this end wrote."""

    total: MeterInterval
    messages: Whole
    latency: Latency
    history: History | None = None

    def lasting(self, seconds: object) -> PerfOutcome:
        """This result over the time that the peer measured; raises ProtocolError."""
        try:
            return replace(
                self,
                total=replace(self.total, seconds=take(seconds, _Duration)),
            )
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent no duration of the test: {why}") from None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bins of the history."""
        history = self.history.to_dict() if self.history is not None else None
        told: dict[str, Any] = to_builtins(replace(self, history=None))
        return told | {"history": history}

    @classmethod
    def from_dict(cls, value: object, bins: PeerBins) -> PerfOutcome:
        """The inverse of `to_dict`; raises ProtocolError."""
        try:
            outcome = take(value, cls)
            history = outcome.history and outcome.history.completed(bins.planes)
            return replace(outcome, history=history)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent a result that cannot be read: {why}") from None


async def outcome_of(meter: Meter, tally: Tally) -> PerfOutcome:
    """The result of this end, up to the last lap. Ends its history."""
    history = await meter.history()
    return PerfOutcome(meter.total(), tally.messages, tally.latency.summary(), history)


async def say_outcome(session: MailboxSession, outcome: PerfOutcome) -> None:
    """Sends the result of this end to the client."""
    if outcome.history is not None:
        for plane, bins in outcome.history.pieces():
            await say(session, "bins", plane=plane, bytes=bins)
    await say(session, "result", outcome=outcome.to_dict())


async def hear_outcome(session: MailboxSession) -> PerfOutcome:
    """Receives the server's result."""
    bins = PeerBins()
    while (message := await hear(session, "result", "bins"))["type"] != "result":
        if message["type"] == "bins":
            bins.add(message.get("plane"), message.get("bytes"))
    return PerfOutcome.from_dict(message.get("outcome"), bins)
