# SPDX-License-Identifier: Apache-2.0
"""What the two ends of a test say to each other over the mailbox of its first QP.

client: plan                    server: ready (its memory) | refuse
client: connects the QPs of the test, each with the token of its plan as private data
                                server: connected
client: start                   both: whoever writes begins
client: mark                    both: counting begins anew, once the omitted start is over
                                server: finished, if it had a number of bytes to write
client: stop                    server: bins, if the plan asks for them, in pieces; result
client: plan, for the next test, or the end of the session
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from mrc.errors import MrcError, ProtocolError
from mrc.exchange.foreign import shown
from mrc.messaging.mailbox import MAX_SENT_BYTES
from mrc.messaging.session import Service, Session
from mrc.perf.history import Bins, History
from mrc.perf.load import Tally
from mrc.perf.meter import Interval, Meter
from mrc.results.perf import Latency
from mrc.typed import Whole, take

# A result with a history of many changes is long.
SERVICE = Service("perf", "performance test", 4, answer_bytes=MAX_SENT_BYTES)
QP_SERVICE = "perf-qp"  # of the QPs of a test

Message = dict[str, Any]


class RefusedError(MrcError):
    """The peer will not, or cannot, carry out the plan."""


async def say(session: Session, kind: str, **body: Any) -> None:
    """Returns when the peer has the message."""
    await session.watched(session.mailbox.send({"type": kind, **body}))


async def hear(session: Session, *kinds: str) -> Message:
    """The peer's next message, which must be one of `kinds`; a refusal is raised."""
    message = await session.receive()
    kind = None if isinstance(message, int) else message.get("type")
    if isinstance(message, dict) and kind == "refuse":
        raise RefusedError(f"{session.qp.peer_host}: {shown(message.get('error'))}")
    if isinstance(message, int) or kind not in kinds:
        raise ProtocolError(
            f"{session.qp.peer_host} sent '{shown(kind, 40)}', not {' or '.join(kinds)}"
        )
    return message


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one end did in a test; `messages` are those that it wrote itself."""

    total: Interval
    messages: Whole
    latency: Latency
    history: History | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the bins of the history."""
        history = self.history.to_json() if self.history is not None else None
        return asdict(replace(self, history=None)) | {"history": history}

    @classmethod
    def from_json(cls, value: object, bins: Bins) -> Outcome:
        """The inverse of `to_json`; raises ProtocolError."""
        try:
            outcome = take(value, cls)
            history = outcome.history and outcome.history.completed(bins.planes)
            return replace(outcome, history=history)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent a result that cannot be read: {why}") from None


async def outcome_of(meter: Meter, tally: Tally) -> Outcome:
    """What one end did; its history ends here."""
    total, history = await meter.total(), await meter.history()
    return Outcome(total, tally.messages, tally.latency.summary(), history)


async def say_outcome(session: Session, outcome: Outcome) -> None:
    """Tells the client what this end did."""
    if outcome.history is not None:
        for plane, bins in outcome.history.pieces():
            await say(session, "bins", plane=plane, bytes=bins)
    await say(session, "result", outcome=outcome.to_json())


async def hear_outcome(session: Session) -> Outcome:
    """What the server did; that it has finished may come before."""
    bins = Bins()
    while (message := await hear(session, "result", "finished", "bins"))["type"] != "result":
        if message["type"] == "bins":
            bins.add(message.get("plane"), message.get("bytes"))
    return Outcome.from_json(message.get("outcome"), bins)
