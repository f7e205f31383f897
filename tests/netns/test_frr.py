# SPDX-License-Identifier: Apache-2.0
"""FRR in the switches of a test bed, with the configuration that `mrc testbed export` writes.

h0, h1 -- t0:1.0 -- t1:1.0, t1:1.1 -- t2:1.0, t2:1.1 -- t1:1.2, t1:1.3 -- t0:1.1 -- h2, h3

tools/systems runs this on Debian 13, which has FRR 10.3; .ci/run does, too.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from slowness import until

from mrc.lab.export import frr, switches, with_link_addresses
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import Node

from .conftest import probe

# `ip netns exec` gives the shell mounts of its own. FRR ends when the test closes its input. This
# kernel may have no dummy interfaces, of which sr0 usually is one.
RUN = """\
ip link add sr0 type veth peer name sr1
ip link set sr0 up
ip link set sr1 up
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/frr
install -d -o frr -g frr /run/frr
cp "$0" /etc/frr/frr.conf
touch /etc/frr/vtysh.conf
trap 'kill $(cat /run/frr/*.pid)' EXIT
for daemon in mgmtd zebra staticd; do /usr/lib/frr/$daemon -d; done
vtysh -b
echo configured
read -r end
"""


def has_static_sids() -> bool:
    zebra = Path("/usr/lib/frr/zebra")
    if not zebra.exists():
        return False
    told = subprocess.check_output([zebra, "--version"], text=True)
    version = re.search(r"version (\d+)\.(\d+)", told)
    return version is not None and (int(version[1]), int(version[2])) >= (10, 3)


@contextmanager
def running(node: Node, conf: Path) -> Iterator[None]:
    conf.write_text(frr(node))
    command = ["ip", "netns", "exec", node.namespace, "sh", "-ec", RUN, str(conf)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as shell:
        assert shell.stdout and shell.stderr
        last = ""
        for line in shell.stdout:
            if (last := line.strip()) == "configured":
                break
        assert last == "configured", shell.stderr.read()
        yield
        shell.communicate()


def all_arrive(bed: Testbed, src: int, dst: int, paths: set[str]) -> bool:
    return probe(bed, src, dst) == Counter(paths)


@pytest.mark.skipif(not has_static_sids(), reason="needs FRR 10.3, for static SIDs")
def test_frr__forwards_every_path(
    bed_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Method: the bed leaves addresses and routes of the switches to FRR."""
    shape = {"hosts": 4, "planes": 1, "t0": 2, "t1": 4, "pods": 2, "t2": 2}
    bed = Testbed(bed_name, rate="1gbit", **shape)
    plan = with_link_addresses(bed.plan)
    bare = {
        name: replace(
            node,
            routes=(),
            addresses=tuple(pair for pair in node.addresses if pair[1].ip.is_link_local),
        )
        for name, node in switches(plan).items()
    }
    monkeypatch.setitem(vars(bed), "plan", replace(plan, nodes=plan.nodes | bare))
    with bed, ExitStack() as stack:
        assert not probe(bed, 0, 1)
        for name, node in switches(plan).items():
            stack.enter_context(running(node, tmp_path / f"{name}.conf"))
        for src, dst, paths in ((0, 1, {"t0:1.0"}), (0, 2, {"t2:1.0", "t2:1.1"})):
            until(partial(all_arrive, bed, src, dst, paths))
