# SPDX-License-Identifier: Apache-2.0
"""What test beds need of this machine: rows of `mrc doctor`.

Run as a program, it tests features of the kernel in the temporary namespaces that it is in, and
prints a JSON object: feature -> error message, or null if it works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path

from mrc.doctor import Finding, State
from mrc.errors import MrcError, StateError
from mrc.linux import netns, system
from mrc.testbed import build, rootless
from mrc.testbed.capture import Ring
from mrc.testbed.netlink import Netlink
from mrc.testbed.plan import REASSEMBLY, BedLink
from mrc.testbed.routes import Route, Srv6Action

PROGRAMS = ("ip", "nft", "unshare")

# Features tested in namespaces: state without the feature, consequence, remedy.
_NEEDS = {
    "veth": (State.MISSING, "no test beds", "a kernel with CONFIG_VETH"),
    "seg6": (
        State.MISSING, "no test beds, no SRv6 paths", "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"
    ),
    "seg6local": (
        State.MISSING, "no test beds, no end of SRv6 paths", "CONFIG_IPV6_SEG6_LWTUNNEL"
    ),
    "uSIDs": (
        State.LIMITED, "no kernel fabrics: use mrc testbed up --fabric emulated",
        "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL",
    ),
    "packet ring": (
        State.LIMITED, "no emulated fabric, no mrc testbed capture", "CONFIG_PACKET"
    ),
    "VXLAN": (
        State.LIMITED, "no test beds over several machines (mrc testbed up --on)", "CONFIG_VXLAN"
    ),
    "tbf": (State.LIMITED, "test beds only with --rate none", "CONFIG_NET_SCH_TBF"),
    "netem": (
        State.LIMITED, "kernel fabrics cannot delay, corrupt, duplicate or reorder packets",
        "--fabric emulated, or CONFIG_NET_SCH_NETEM",
    ),
    "ESP": (
        State.LIMITED, "IPsec cannot encrypt packets of mrc",
        "iproute2; a kernel with CONFIG_INET_ESP, CONFIG_INET6_ESP, CONFIG_CRYPTO_GCM",
    ),
    "nftables": (
        State.MISSING, "no test beds", "apt-get install nftables; a kernel with CONFIG_NF_TABLES"
    ),
    "reassembly": (
        State.LIMITED, "test beds lose datagrams larger than the MTU", "CONFIG_NFT_TPROXY"
    ),
}  # fmt: skip

NEAR, FAR = "mrc-near", "mrc-far"
_VIA = IPv6Address("fe80::1")
_RULES = """\
table ip6 mrc {
  chain forward {
    type filter hook forward priority filter
    iifname p1 numgen random mod 10000 < 2000 counter drop
  }
}
"""
_ESP = (
    "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 1 mode transport "
    f"aead rfc4106(gcm(aes)) 0x{'17' * 20} 128"
)
_VXLAN = "v1", FAR, 1500, BedLink.LOWER_MAC, 1, IPv4Address("192.0.2.1"), 47900
_SECONDS = 30.0


def examine() -> list[Finding]:
    """Takes about a second and leaves nothing behind."""
    return [_real_time(), _mptcp(), *_namespaces(), *_programs()]


def _real_time() -> Finding:
    """Tests real-time priority in a thread, so that we keep our own."""

    def is_allowed() -> bool:
        lowest = os.sched_get_priority_min(os.SCHED_FIFO)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(lowest))  # 0: this thread
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(is_allowed).result()
    needs = (State.LIMITED, "on a busy machine an emulated fabric runs milliseconds late",
             "root, or ulimit -r 1")  # fmt: skip
    return Finding.of("real-time priority", good, "allowed" if good else "not allowed", needs)


def _mptcp() -> Finding:
    path = Path("/proc/sys/net/mptcp/enabled")
    enabled = path.exists() and path.read_text().strip() == "1"
    needs = (State.LIMITED, "bench/compare omits MPTCP", "CONFIG_MPTCP, net.mptcp.enabled=1")
    return Finding.of("MPTCP", enabled, "enabled" if enabled else "not enabled", needs)


def _namespaces() -> Iterator[Finding]:
    root = not netns.lacks()
    try:
        allowed = rootless.is_allowed()
        found = "allowed" if allowed else "not allowed"
        needs = (State.LIMITED if root else State.MISSING, "test beds require root",
                 rootless.REMEDY)  # fmt: skip
        yield Finding.of("user namespaces", allowed, found, needs)
        if not (root or allowed):
            return
        tried = kernel()
    except StateError as exc:
        yield Finding("network namespaces", State.MISSING, str(exc), "no test beds",
                      "CONFIG_NET_NS; unshare of util-linux")  # fmt: skip
        return
    yield Finding("network namespaces", State.OK, "available")
    for name, error in tried.items():
        yield Finding.of(name, error is None, error or "available", _NEEDS[name])


def _programs() -> Iterator[Finding]:
    for name in PROGRAMS:
        where = system.find(name)
        needs = (State.MISSING, "no test beds", f"apt-get install {system.PACKAGES[name]}")
        yield Finding.of(f"program {name}", where is not None, where or "not installed", needs)


def kernel() -> dict[str, str | None]:
    """Feature -> error message, or None. Runs in a separate process, so that nothing remains.

    Raises StateError if that process or its namespaces fail.
    """
    argv = rootless.throw_away([sys.executable, "-P", "-m", __name__])
    try:
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        done = subprocess.run(
            argv, check=True, stdin=null, stdout=pipe, stderr=pipe, text=True, timeout=_SECONDS
        )
        answer: dict[str, str | None] = json.loads(done.stdout)
    except subprocess.CalledProcessError as exc:
        lines = str(exc.stderr).strip().splitlines()
        raise StateError(lines[-1] if lines else f"exit code {exc.returncode}") from exc
    except (OSError, ValueError, subprocess.TimeoutExpired) as exc:
        raise StateError(str(exc)) from exc
    return answer


def _try(work: Callable[[], object]) -> str | None:
    try:
        work()
    except (MrcError, OSError) as exc:
        return str(exc)
    return None


def _has_qdisc(link: Netlink, kind: str) -> None:
    if not link.has_qdisc(kind):
        raise StateError(f"the kernel lacks {kind}")


def _add_esp(namespace: str) -> None:
    argv = [*system.require("ip"), "-n", namespace, *_ESP.split()]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StateError(done.stderr.strip().removeprefix("Error: ").rstrip("."))


def main() -> dict[str, str | None]:
    netns.create(NEAR)
    netns.create(FAR)
    found: dict[str, str | None] = {}
    with Netlink(NEAR) as link:
        veth = ("p1", "h0", FAR, 1500, BedLink.LOWER_MAC, BedLink.UPPER_MAC)
        found["veth"] = _try(lambda: link.add_veth(*veth))
        if found["veth"] is None:
            link.set_links(["lo", "p1"], up=True)
            link.add_addresses([("p1", IPv6Interface("fe80::2/64"))])
            carrier = Srv6Action("encap.red", (IPv6Address("fcbb:1:100:201:e000::"),))
            routes = {
                "seg6": Route(IPv6Network("fd00:a:1::1:0"), "p1", via=_VIA, action=carrier),
                "seg6local": Route(
                    IPv6Network("fcbb:1:e000::/48"), "p1", action=Srv6Action("End.DT6")
                ),
                "uSIDs": Route(IPv6Network("fcbb:1:100::/48"), "p1", action=Srv6Action("End")),
            }
            for name, route in routes.items():
                found[name] = _try(partial(link.add_routes, [route]))
            found["VXLAN"] = _try(lambda: link.add_vxlan(*_VXLAN))
            found["packet ring"] = _try(lambda: Ring(NEAR, "p1").__exit__())
        for kind in ("tbf", "netem"):
            found[kind] = _try(partial(_has_qdisc, link, kind))
    found["ESP"] = _try(partial(_add_esp, NEAR))
    found["nftables"] = _try(lambda: build.apply_rules({NEAR: _RULES}))
    found["reassembly"] = _try(lambda: build.apply_rules({NEAR: REASSEMBLY}))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
