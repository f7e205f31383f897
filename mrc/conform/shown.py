# SPDX-License-Identifier: Apache-2.0
"""What a capture shows: of two implementations, and of readings; as results for programs and as
lines for people. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from mrc.conform.passive import Direction, Judge, typical
from mrc.conform.readings import READINGS
from mrc.conform.results import Broken, Captured, DirectionText, ShownReading, ShownReadings
from mrc.dissect.capture import Frame
from mrc.dissect.frame import udp_of
from mrc.dissect.packet import decode, is_mrc, split
from mrc.results.plain import like
from mrc.units import counted, digits


def judged(frames: Iterable[Frame], ports: Collection[int] | None) -> tuple[Judge, int]:
    """What these frames show, and how many packets to these UDP ports there are."""
    judge, packets, start = Judge(), 0, None
    for frame in frames:
        start = frame.seconds if start is None else start
        found = udp_of(frame.data, frame.link)
        if found is None or not is_mrc(*found, ports):
            continue
        flow, payload = found
        parts = split(payload)
        for part, piece in enumerate(parts, 1):
            missing = frame.missing if part == len(parts) else 0
            judge.take(frame.seconds - start, flow, decode(piece, flow, missing=missing))
            packets += 1
    judge.finish()
    return judge, packets


def result(judge: Judge, packets: int) -> Captured:
    """For programs."""
    return Captured(
        packets=packets,
        wrong_icrc=judge.wrong_icrc,
        readings=tuple(sorted(judge.readings)),
        hidden=_hidden(_seen(judge)),
        directions=tuple(map(_direction, judge.directions.values())),
    )


def _seen(judge: Judge) -> Counter[str]:
    """How often each reading was seen."""
    seen = Counter(judge.readings)
    for way in judge.directions.values():
        seen.update(way.readings)
    return +seen


def _hidden(seen: Collection[str]) -> tuple[str, ...]:
    """The subjects of which nothing was seen."""
    subjects = {name.partition("-")[0] for name in seen}
    return tuple(each.id for each in READINGS if each.id not in subjects)


def _direction(way: Direction) -> DirectionText:
    firsts = {each.invariant: each for each in reversed(way.findings)}
    return like(
        DirectionText, way,
        window_psns=way.window, evs=len(way.evs), nacks=dict(way.nacks),
        sack_seconds=typical(way.rtts), retransmission_seconds=typical(way.waits),
        reported_loss_seconds=typical(way.course.waits_reported),
        timer_seconds=typical(way.course.waits_silent),
        timer_retransmissions=len(way.course.waits_silent),
        flight_after_loss=way.course.reaction("loss"),
        flight_after_mark=way.course.reaction("mark"),
        flight_after_trim=way.course.reaction("trim"),
        turn_packets=typical(way.turns), turn_after_mark_packets=typical(way.turns_after_mark),
        readings=tuple(sorted(name for name, count in way.readings.items() if count)),
        broken=tuple(
            Broken(
                invariant=name, count=count, first=firsts[name].text,
                first_seconds=firsts[name].seconds,
            )
            for name, count in way.broken.items()
        ),
    )  # fmt: skip


def lines(found: Captured) -> Iterator[str]:
    """For people."""
    for way in found.directions:
        yield f"{way.source} > {way.destination}, QPN 0x{way.qpn:06x}"
        yield (f"  data     {counted(way.packets, 'packet')}, {way.payload_bytes} bytes; at most"
               f" {counted(way.window_psns, 'PSN')} in flight")  # fmt: skip
        yield f"  EVs      {way.evs}, fairness {way.fairness:.3f}{_turns(way)}"
        again = counted(way.retransmissions, "packet")
        lost = f"{counted(way.lost, 'PSN')} sent again, {again} with rtx"
        yield f"  loss     {lost}{_time(', median wait', way.retransmission_seconds)}"
        yield (f"  timers   {counted(way.timer_retransmissions, 'retransmission')} without news"
               f"{_time(', median wait', way.timer_seconds)}"
               f"{_time('; with news', way.reported_loss_seconds)}")  # fmt: skip
        if reactions := _reactions(way):
            yield f"  reaction {reactions}"
        yield f"  network  {way.marked} marked, {way.trimmed} trimmed"
        nacks = "".join(f", {count} NACK {name}" for name, count in way.nacks.items())
        yield (f"  answers  {counted(way.sacks, 'SACK')}{_time(' after', way.sack_seconds)},"
               f" {counted(way.acks, 'ACK')}{nacks}")  # fmt: skip
        yield f"  readings {', '.join(way.readings) or 'none shown'}"
        if way.uncaptured:
            yield f"  capture  lacks {counted(way.uncaptured, 'PSN')}; was it too slow?"
        for each in way.broken:
            yield (f"  BROKEN   {each.invariant}: {counted(each.count, 'time')}; first at"
                   f" {each.first_seconds:.6f} s: {each.first}")  # fmt: skip
    if found.readings:
        yield f"endpoints: readings {', '.join(found.readings)}"
    if found.hidden and found.directions:
        yield f"the capture shows nothing of readings {', '.join(found.hidden)}"
    if found.wrong_icrc:
        yield f"not judged: {counted(found.wrong_icrc, 'packet')} with a wrong ICRC"


def _turns(way: DirectionText) -> str:
    if way.turn_packets is None:
        return ""
    marked = way.turn_after_mark_packets
    after_mark = "" if marked is None else f", {digits(marked)} after a mark"
    return f"; {digits(way.turn_packets)} packets of the plane between two uses{after_mark}"


def _reactions(way: DirectionText) -> str:
    """The flight after losses, marks and trims, relative to that before."""
    found = {
        "a loss": way.flight_after_loss, "a mark": way.flight_after_mark,
        "a trim": way.flight_after_trim,
    }  # fmt: skip
    told = [f"{share:.2f} after {name}" for name, share in found.items() if share is not None]
    return f"flight falls to {', '.join(told)}" if told else ""


def _time(before: str, seconds: float | None) -> str:
    return "" if seconds is None else f"{before} {seconds * 1e6:.0f} us"


def readings(frames: Iterable[Frame], ports: Collection[int] | None) -> ShownReadings:
    """What all packets to these UDP ports show about readings."""
    judge, packets = judged(frames, ports)
    seen = _seen(judge)
    found = tuple(
        ShownReading(
            reading=name, subject=each.title, text=one.text, ours=name == each.choice,
            packets=seen[name],
        )
        for each in READINGS
        for name, one in zip(each.names, each.alternatives, strict=True) if seen[name]
    )  # fmt: skip
    return ShownReadings(packets=packets, readings=found, hidden=_hidden(seen))


def reading_lines(found: ShownReadings) -> Iterator[str]:
    """For people."""
    for one in found.readings:
        ours = " <- mrc" if one.ours else ""
        yield f"{one.reading:6} {one.packets:7} packets  {one.subject}: {one.text}{ours}"
    if found.hidden:
        yield f"the capture shows nothing of {', '.join(found.hidden)}"
