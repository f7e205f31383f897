# SPDX-License-Identifier: Apache-2.0
"""Test beds that were built from an export, without mrc's own netlink code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from netns.processes import Mrc
from slowness import PATIENCE

from mrc.lab.export import containerlab, netns_script
from mrc.linux import netns
from mrc.testbed import build
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import BedPlan, make_plan
from mrc.testbed.shape import Shape

from .conftest import needs_real_root

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

pytestmark = needs_real_root


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
                for namespace, interface in ((a, p), (b, q)):
                    subprocess.run(
                        ["ip", "-n", namespace, "link", "set", interface, "up"], check=True
                    )
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


def test_netns_script__carries_mrc(bed_name: str, tmp_path: Path) -> None:
    mrc = [sys.executable, "-m", "mrc"]
    payload = os.urandom(3 << 20)
    (tmp_path / "sent").write_bytes(payload)
    (tmp_path / "inbox").mkdir()
    with built_by_script(make_plan(bed_name, SHAPE), tmp_path) as script:
        again = subprocess.run([script, "up"], capture_output=True, text=True, check=False)
        assert (again.returncode, again.stderr.count("\n")) == (1, 1)
        assert f"mrc-{bed_name}-h0 exists: run {script} down" in again.stderr
        recv = [str(script), "exec", "h3", *mrc, "recv", "--output", str(tmp_path / "inbox")]
        with subprocess.Popen(
            recv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as end:
            receiver = Mrc(end)
            receiver.until_listening()
            send: list[str | Path] = [script, "exec", "h0", *mrc, "send", tmp_path / "sent", "h3"]
            subprocess.run(send, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
            receiver.end()
        assert (tmp_path / "inbox" / "sent").read_bytes() == payload
    assert not [name for name in netns.names() if name.startswith(f"mrc-{bed_name}-")]
    wrong = subprocess.run(
        [script, "exec", "h0", "true"], capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stderr) == (1, f"{script}: no h0: run {script} up\n")
