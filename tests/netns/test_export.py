# SPDX-License-Identifier: Apache-2.0
"""Test beds that were built from an export, without mrc's own netlink code, and the addresses and
configuration of real switches, with FRR in them.

h0, h1 -- t0:1.0 -- t1:1.0, t1:1.1 -- t2:1.0, t2:1.1 -- t1:1.2, t1:1.3 -- t0:1.1 -- h2, h3

tools/systems runs FRR on Debian 13, which has FRR 10.3; .ci/run does, too.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from slowness import PATIENCE, until

from mrc.lab.export import containerlab, frr, netns_script, switches, with_link_addresses
from mrc.linux import netns
from mrc.testbed import build
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import BedPlan, Node, make_plan
from mrc.testbed.shape import Shape

from .conftest import needs_real_root, probe

SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2, fabric_rate_bps=200_000_000)
SHOWN = (
    ("ip", "-6", "route", "show", "table", "all"),
    ("ip", "-6", "neighbour", "show", "nud", "permanent"),
    ("ip", "-6", "-o", "address"),
    ("ip", "sr", "tunsrc", "show"),
    ("tc", "qdisc"),
    ("nft", "list", "ruleset"),
)
Way = Callable[[BedPlan, Path], AbstractContextManager[object]]


def state_of(name: str, node: str) -> list[str]:
    """All that the kernel has in a node, in one order."""
    with netns.inside(f"mrc-{name}-{node}"):
        texts = [subprocess.check_output(command, text=True) for command in SHOWN]
    return sorted(line for text in texts for line in text.splitlines())


@contextmanager
def built_by_script(plan: BedPlan, folder: Path) -> Iterator[Path]:
    script = folder / "lab.sh"
    script.write_text(netns_script(plan))
    script.chmod(0o755)
    try:
        subprocess.run([script, "up"], check=True, stdout=subprocess.DEVNULL)
        yield script
    finally:
        subprocess.run([script, "down"], check=True)


@contextmanager
def built_as_containerlab_does(plan: BedPlan, folder: Path) -> Iterator[None]:
    """Containers become namespaces. The links have MAC addresses of their own and are up before
    the commands of the nodes run.
    """
    for name, text in containerlab(plan, "mrc").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    lines = (folder / f"{plan.name}.clab.yml").read_text().splitlines()
    try:
        for node in plan.nodes.values():
            netns.create(node.namespace)
        for line in lines:
            if "endpoints" in line:
                (a, p), (b, q) = (end.split(":") for end in json.loads(line.partition(": ")[2]))
                a, b = f"mrc-{plan.name}-{a}", f"mrc-{plan.name}-{b}"
                words = f"link add {p} netns {a} type veth peer name {q} netns {b}"
                subprocess.run(["ip", *words.split()], check=True)
                for where, interface in ((a, p), (b, q)):
                    subprocess.run(["ip", "-n", where, "link", "set", interface, "up"], check=True)
        for node in plan.nodes.values():
            enter = ["ip", "netns", "exec", node.namespace, "unshare", "-m", "sh", "-ec"]
            etc = folder / "etc"
            etc.touch()
            prepare = (
                'mount --bind "$0" /mnt; mount --bind "$1" /etc/hosts; sed s,/mrc,/mnt,g $2 | sh'
            )
            script = "/mnt/set-up.sh"
            subprocess.run([*enter, prepare, folder / node.name, etc, script], check=True)
        yield
    finally:
        build.remove(plan.name)


@needs_real_root
@pytest.mark.default
@pytest.mark.parametrize(
    "way", [pytest.param(built_by_script, marks=pytest.mark.slow), built_as_containerlab_does]
)
def test_export__builds_the_same_as_up(way: Way, bed_name: str, tmp_path: Path) -> None:
    ours = f"{bed_name}-own"
    with Testbed.of(ours, SHAPE) as bed, way(make_plan(bed_name, SHAPE), tmp_path):
        for node in bed.plan.nodes:
            theirs = [line for line in state_of(bed_name, node) if "proto kernel_ll" not in line]
            assert theirs == state_of(ours, node), node


@needs_real_root
def test_netns_script__runs_programs_and_comes_up_once(bed_name: str, tmp_path: Path) -> None:
    with built_by_script(make_plan(bed_name, SHAPE), tmp_path) as script:
        again = subprocess.run([script, "up"], capture_output=True, text=True, check=False)
        assert (again.returncode, again.stderr.count("\n")) == (1, 1)
        assert f"mrc-{bed_name}-h0 exists: run {script} down" in again.stderr
        ping = ["ping", "-c1", f"-W{PATIENCE:g}", "h3"]
        subprocess.run([script, "exec", "h0", *ping], check=True, stdout=subprocess.DEVNULL)
    assert not [name for name in netns.names() if name.startswith(f"mrc-{bed_name}-")]
    argv = [str(script), "exec", "h0", "true"]
    wrong = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, f"{script}: no h0: run {script} up\n")


# ---- Real switches -------------------------------------------------------------------------------


def test_link_addresses__carry_the_same_paths(
    bed_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses and routes that real switches get, in the kernel: every path arrives."""
    bed = Testbed(bed_name, hosts=4, planes=2, t0=2, t1=2, rate="1gbit")
    monkeypatch.setitem(vars(bed), "plan", with_link_addresses(bed.plan))
    with bed:
        for src, dst in ((0, 1), (0, 3), (3, 1)):
            expected = {path.name for path in bed.shape.paths(src, dst)}
            assert set(probe(bed, src, dst, each=2)) == expected


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
