# SPDX-License-Identifier: Apache-2.0
"""What the interfaces allow and the probes found, as lines for people: planes that are silent or
carry less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mrc.errors import Kind, PathError
from mrc.units import counted

HEADER_BYTES = 106  # of a packet beside its payload, from Ethernet on
_WORTH_TELLING = 1.02  # the ratio of two packet sizes
_MOST_NAMED = 4


class NoAnswerError(PathError):
    """Nothing has answered the probes of the paths."""

    kind = Kind.NO_ANSWER


def no_answer(host: str, targets: Sequence[str], udp_port: int) -> NoAnswerError:
    """Nothing has answered at these addresses."""
    where = ", ".join([*targets[:4], *["..."] * (len(targets) > 4)])
    return NoAnswerError(
        f"no path to {host} ({where}) answers on UDP port {udp_port}: is UDP blocked?"
    )


def limits(mtus: Iterable[tuple[int, int]], most: int) -> dict[int, int]:
    """The payload that each plane's interfaces allow, from pairs of plane and payload."""
    allowed: dict[int, int] = {}
    for plane, mtu in mtus:
        allowed[plane] = min(mtu, allowed.get(plane, most))
    return allowed


def named(planes: Iterable[int], nics: Mapping[int, str]) -> str:
    """ "plane 2 (eth1)", or "planes 2 (eth1) and 3 (eth2)"."""
    each = [f"{plane} ({nics[plane]})" if plane in nics else str(plane) for plane in planes]
    if len(each) > _MOST_NAMED:
        each[_MOST_NAMED:] = [f"{len(each) - _MOST_NAMED} more"]
    if len(each) == 1:
        return f"plane {each[0]}"
    return f"planes {', '.join(each[:-1])} and {each[-1]}"


def smaller_packets(
    host: str,
    path_mtu: int,
    allowed: Mapping[int, int],
    found: Mapping[int, int],
    nics: Mapping[int, str],
) -> str:
    """Why packets to `host` are smaller than they could be, and what that costs; or "".

    `allowed` has the payload that the interfaces of each plane allow; the probes were not larger
    than the least of them. `found` has what the probes found on each living plane, and `nics` the
    interface of each plane of this host.
    """
    probed = min(allowed.values())
    carried = {
        plane: allowed[plane] if payload == probed else payload for plane, payload in found.items()
    }
    most = max([probed, *carried.values()])
    if most < _WORTH_TELLING * path_mtu:
        return ""
    limiting = [plane for plane, payload in carried.items() if payload <= path_mtu]
    if not limiting:
        return (
            f"packets to {host} carry {path_mtu} bytes, not {most}: {host} reports that its own"
            " packets carry no more; its mrc names the plane"
        )
    others = sorted(carried.keys() - set(limiting))
    if not others:
        return (
            f"packets to {host} carry {path_mtu} bytes, not {most}: on every plane a link on the"
            " way has a smaller MTU"
        )
    verb = "carries" if len(limiting) == 1 else "carry"
    rate, times = 1 - _efficiency(path_mtu) / _efficiency(most), most / path_mtu
    costs = f"{rate:.0%} of the rate and " if rate >= 0.01 else ""
    costs += f"{times:.1f} times as many" if times >= 1.5 else f"{times - 1:.0%} more"
    costs += " packets"
    return (
        f"{named(limiting, nics)} to {host} {verb} only {path_mtu} bytes in a packet, other planes"
        f" {most}: all planes use {path_mtu}, which costs {costs}"
        f"{_remedy(limiting, others, nics)}"
    )


def _efficiency(payload: int) -> float:
    return payload / (payload + HEADER_BYTES)


def _remedy(limiting: Sequence[int], others: Sequence[int], nics: Mapping[int, str]) -> str:
    out = {nics[plane] for plane in limiting if plane in nics}
    rest = list(dict.fromkeys(nics[plane] for plane in others if plane in nics))
    if not rest or out & set(rest):
        return ""
    options = " ".join(f"-B {nic}" for nic in rest[:_MOST_NAMED]) + " ..." * (
        len(rest) > _MOST_NAMED
    )
    return f"; raise its MTU, or leave it out: {options}"


def silent_paths(
    host: str, planes: Sequence[int], dead: Iterable[int], nics: Mapping[int, str]
) -> str:
    """Which paths to `host` do not answer; or "". `planes` has the plane of each EV."""
    silent = [planes[index] for index in dead]
    if not silent:
        return ""
    whole = sorted({plane for plane in silent if silent.count(plane) == planes.count(plane)})
    parts = sorted(set(silent) - set(whole))
    lines = []
    if whole:
        verb = "does" if len(whole) == 1 else "do"
        lines.append(f"{named(whole, nics)} to {host} {verb} not answer")
    if parts:
        count = sum(plane in parts for plane in silent)
        total = sum(plane in parts for plane in planes)
        lines.append(
            f"{count} of {counted(total, 'path')} to {host} on {named(parts, nics)} do not answer"
        )
    return "; ".join(lines)
