# SPDX-License-Identifier: Apache-2.0
"""Tests the kernel features of test beds in temporary namespaces.

Run as a program, it prints a JSON object: feature -> error message, or null if it works.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network

from mrc.errors import MrcError, StateError
from mrc.fabric.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route
from mrc.linux import installed, netns
from mrc.linux.netlink import Netlink, Veth, Vxlan
from mrc.testbed import nft, rootless
from mrc.testbed.capture import Ring
from mrc.testbed.hostrules import REASSEMBLY
from mrc.testbed.plan import LOWER_MAC, UPPER_MAC

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
_VXLAN = Vxlan("v1", FAR, 1500, LOWER_MAC, 1, IPv4Address("192.0.2.1"), 47900)
_SECONDS = 30.0


def examine() -> dict[str, str | None]:
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
    argv = [*installed.require("ip"), "-n", namespace, *_ESP.split()]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StateError(done.stderr.strip().removeprefix("Error: ").rstrip("."))


def main() -> dict[str, str | None]:
    netns.create(NEAR)
    netns.create(FAR)
    found: dict[str, str | None] = {}
    with Netlink(NEAR) as link:
        veth = Veth("p1", "h0", FAR, 1500, LOWER_MAC, UPPER_MAC)
        found["veth"] = _try(lambda: link.add_veths([veth]))
        if found["veth"] is None:
            link.set_links(["lo", "p1"], up=True)
            link.add_addresses([("p1", IPv6Interface("fe80::2/64"))])
            carrier = EncapRed((IPv6Address("fcbb:1:100:201:e000::"),))
            routes = {
                "seg6": Route(IPv6Network("fd00:a:1::1:0"), "p1", via=_VIA, action=carrier),
                "seg6local": Route(
                    IPv6Network("fcbb:1:e000::/48"), "p1", action=EndDT6(LOCAL_TABLE)
                ),
                "uSIDs": Route(IPv6Network("fcbb:1:100::/48"), "p1", action=End()),
            }
            for name, route in routes.items():
                found[name] = _try(partial(link.add_routes, [route]))
            found["VXLAN"] = _try(lambda: link.add_vxlans([_VXLAN]))
            found["packet ring"] = _try(lambda: Ring(NEAR, "p1").__exit__())
        for kind in ("tbf", "netem"):
            found[kind] = _try(partial(_has_qdisc, link, kind))
    found["ESP"] = _try(partial(_add_esp, NEAR))
    found["nftables"] = _try(lambda: nft.apply({NEAR: _RULES}))
    found["reassembly"] = _try(lambda: nft.apply({NEAR: REASSEMBLY}))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
