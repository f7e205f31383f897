# SPDX-License-Identifier: Apache-2.0
"""What is done to a test bed, with its result as data: the same for the command line and for
`mrc.testbed`.

All functions block. They raise what the methods of `Testbed` raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from mrc.errors import ConfigError, MrcError
from mrc.linux import netns
from mrc.results import like
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Fault, Mode
from mrc.testbed.results import (
    BedDescription,
    BedHost,
    Built,
    Drained,
    FabricCounters,
    Healed,
    Injection,
    LinkCounters,
    NotUp,
    Removed,
    Status,
)


def down(name: str) -> Removed:
    """Removes a test bed, or what is left of it, and ends the programs in it."""
    if netns.lacks() and stored.load(name) is None:
        return Removed(name=name, removed=False, ended=(), left=(), unreachable={})
    try:
        bed = Testbed.named(name)
    except ConfigError:
        bed = Testbed(name)  # its file is damaged
    return bed.down()


def fail(
    bed: Testbed, target: str, mode: str = Mode.SILENT, loss: float | None = None, **impairment: Any
) -> Injection:
    """As `Testbed.fail`."""
    bed.fail(target, mode, loss, **impairment)
    return Injection(name=bed.name, fault=bed.faults()[target].result(target))


def heal(bed: Testbed, target: str = "all") -> Healed:
    """As `Testbed.heal`."""
    healed = bed.heal(target)
    return Healed(name=bed.name, healed=tuple(healed), failing=tuple(bed.faults()))


def drain(bed: Testbed, target: str) -> Drained:
    """As `Testbed.drain`."""
    changed = (target,) if bed.drain(target) else ()
    return Drained(name=bed.name, changed=changed, drained=bed.drained())


def undrain(bed: Testbed, target: str = "all") -> Drained:
    """As `Testbed.undrain`."""
    changed = tuple(bed.undrain(target))
    return Drained(name=bed.name, changed=changed, drained=bed.drained())


# ---- Status --------------------------------------------------------------------------------------


class Look(Struct, frozen=True):
    """A test bed that is up, and its traffic during one interval."""

    bed: Testbed
    faults: dict[str, Fault]
    links: dict[str, LinkCounters]
    counters: FabricCounters | None
    lost: dict[str, str]
    drained: tuple[str, ...]

    @property
    def status(self) -> Status:
        found = describe(self.bed, self.faults, self.lost, self.drained)
        return like(Status, found, counters=self.counters, links=self.links)


def look(
    name: str, seconds: float, warn: Callable[[str], None], before: Look | None = None
) -> Look | None:
    """Measures a test bed for some seconds; None if it is not up. `before`: the last look, whose
    connections to other machines it uses. `warn` gets the reason for counters that are missing.
    """
    found = stored.load(name)
    if found is None or not found.up:
        return None
    if before is not None and before.bed.is_current():
        bed = before.bed
    else:
        bed = Testbed.spanning(name, found.shape, found.machines)
    counters: FabricCounters | None = None
    links: dict[str, LinkCounters] = {}
    lost: dict[str, str] = {}
    if not bed.missing():
        try:
            links, lost = bed.measure(seconds), bed.lost()
            if bed.shape.is_emulated:
                counters = like(FabricCounters, bed.counters())
        except MrcError as exc:  # show the status without counters
            warn(str(exc))
    return Look(bed, found.faults, links, counters, lost, found.drained)


def not_up(name: str) -> NotUp:
    """The status of a test bed that is not up."""
    return NotUp(name=name, state="down" if stored.load(name) is None else "half built")


def built(bed: Testbed, *, anew: bool) -> Built:
    """The result of `Testbed.up`, which returned `anew`."""
    return like(Built, describe(bed, {}), built=anew)


def describe(
    bed: Testbed,
    faults: Mapping[str, Fault],
    lost: Mapping[str, str] | None = None,
    drained: tuple[str, ...] | None = None,
) -> BedDescription:
    """`lost`: the ends of links that were taken down by hand; None: looks for them, and for what is
    drained.
    """
    lost = bed.lost() if lost is None else lost
    shape = bed.shape
    return like(
        BedDescription,
        shape,
        name=bed.name,
        hosts=tuple(_host(bed, f"h{number}", number) for number in shape.host_numbers()),
        faults=tuple(fault.result(target) for target, fault in faults.items()),
        missing=tuple(bed.missing()),
        drained=bed.drained() if drained is None else drained,
        taken_down=tuple(lost),
        machines=bed.shares(),
    )


def _host(bed: Testbed, name: str, number: int) -> BedHost:
    return BedHost(
        host=name,
        namespace=bed.plan.nodes[name].namespace,
        config=str(stored.config_path(bed.name, name)),
        address=str(bed.shape.addresses.host(number)),
        plane_addresses=tuple(map(str, bed.shape.plane_addresses(number))),
        oob=str(bed.shape.addresses.oob(number)),
    )
