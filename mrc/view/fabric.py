# SPDX-License-Identifier: Apache-2.0
"""Reads the links of a test bed, and fails and heals its parts. Every call blocks."""

from __future__ import annotations

import time
from threading import Lock
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Fault, Hop
from mrc.view.feed import BedDrawing, FabricFault, FabricLink, LinkLoads

_Share = Annotated[float, Meta(ge=0, le=1)]


class FabricChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for."""

    do: Literal["fail", "heal"]
    target: Annotated[str, Meta(max_length=64)]
    mode: Literal["silent", "down"] = "silent"
    loss: _Share | None = None
    """None: all packets, or with a rate or a delay none"""
    rate_share: _Share | None = None
    delay_ns: Annotated[int, Meta(ge=0, le=10**10)] | None = None


class FabricView:
    """A test bed, by its name: another one may be up under this name later. Threads share it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._drawn: BedDrawing | None = None
        self._bed: Testbed | None = None
        """with connections to the other machines that it is on"""
        self._lock = Lock()
        self._at_ns = 0
        self._counts: dict[str, dict[str, int]] = {}
        self.trouble = ""
        """why the last `read` lacks links"""

    def close(self) -> None:
        """Ends what runs on other machines. The next interval begins with the next `read`, which
        looks for lost machines again.
        """
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._counts = {}
        bed, self._bed, self._drawn = self._bed, None, None
        if bed is not None:
            bed.close()

    def read(self) -> tuple[BedDrawing, LinkLoads]:
        """Raises an MrcError if there is no test bed."""
        with self._lock:
            bed, faults = self._current()
            if self._drawn is None:
                self._drawn = _drawn(bed)
            links = self._links(bed, self._drawn, faults)
            self.trouble = "; ".join(
                f"{each.name} is lost, with its hosts and switches: {each.lost}; reload the page "
                "when it is back"
                for each in bed.shares()
                if each.lost
            )
            return self._drawn, links

    def _current(self) -> tuple[Testbed, dict[str, Fault]]:
        if self._bed is None or not self._bed.is_current():
            self._forget()
            self._bed = Testbed.existing(self._name)
        return self._bed, self._bed.faults()

    def change(self, change: FabricChange) -> None:
        """Raises an MrcError."""
        given = {"rate_share": change.rate_share, "delay_ns": change.delay_ns}
        impairment: dict[str, Any] = {key: it for key, it in given.items() if it is not None}
        with self._lock:
            bed, _ = self._current()
            if change.do == "heal":
                bed.heal(change.target)
            else:
                bed.fail(change.target, change.mode, change.loss, **impairment)

    def _links(self, bed: Testbed, drawn: BedDrawing, faults: dict[str, Fault]) -> LinkLoads:
        before, counts, at_ns = self._counts, bed.links(), time.monotonic_ns()
        seconds = (at_ns - self._at_ns) / 1e9 if before else 0.0
        self._counts, self._at_ns = counts, at_ns
        names = [name for part in drawn.links for name in (part.up, part.down)]
        usual = [rate for part in drawn.links for rate in part.rates_bps]
        limits = bed.rates() if any(each.cuts_rate for each in faults.values()) else {}

        def grown(counter: str) -> dict[int, int]:
            """Counters of a fault begin anew with the fault."""
            if not before:
                return {}
            found = (
                (place, counts[name][counter] - before[name][counter])
                for place, name in enumerate(names)
                if name in counts and name in before
            )
            return {place: count for place, count in found if count > 0}

        moved = grown("bytes")
        return LinkLoads(
            monotonic_ns=at_ns,
            seconds=seconds,
            rates_bps=tuple(
                round(moved[place] * 8 / seconds) if place in moved else 0
                for place in range(len(names))
            ),
            queue_bytes={
                place: count
                for place, name in enumerate(names)
                if name in counts and (count := counts[name]["queue_bytes"])
            },
            limits_bps={
                place: limit
                for place, name in enumerate(names)
                if (limit := limits.get(name)) is not None and limit != usual[place]
            },
            lost=grown("lost"),
            dropped=grown("dropped"),
            trimmed=grown("trimmed"),
            marked=grown("marked"),
            unknown=tuple(place for place, name in enumerate(names) if name not in counts),
            faults={
                target: FabricFault(
                    fault.mode.value,
                    str(fault).replace(".00%", "%").removesuffix(" of its own"),
                    fault.loss,
                    fault.rate_share or None,
                    fault.delay_ns,
                    fault.mtu,
                )
                for target, fault in faults.items()
            },
        )


def _drawn(bed: Testbed) -> BedDrawing:
    shape = bed.shape
    links = []
    for link, (up, down) in shape.link_properties().items():
        first, second = Hop.both_ways(link, shape)
        part = FabricLink(
            target=str(link),
            plane=link.plane,
            host=link.host,
            t0=link.t0 if link.host is None else shape.t0_of_link(link),
            t1=link.t1,
            t2=link.t2,
            up=str(first),
            down=str(second),
            rates_bps=(up.rate_bps, down.rate_bps),
        )
        links.append(part)
    return BedDrawing(bed.name, bed.summary(), shape.planes, tuple(links), bed.can_delay())
