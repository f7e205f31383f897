# SPDX-License-Identifier: Apache-2.0
"""libfabric's own tests of RDM endpoints over libmrc-fi, between two hosts: those that
csrc/ofi/README.md lists, as it lists them. MRC_FABTESTS names the folder of these programs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from netns.processes import Hosts, popen, sockets
from slowness import PATIENCE, until

from mrc.agent.libraries import FOLDER, PROVIDER
from mrc.testbed.bed import Testbed

from .conftest import fresh_name

FABTESTS = Path(os.environ.get("MRC_FABTESTS", "/nonexistent"))
README = Path(__file__).resolve().parents[2] / "csrc/ofi/README.md"
PORT = 47593  # of their exchange beside the provider
LISTENING = "0A"
ALONE = {"fi_getinfo_test", "fi_dom_test", "fi_eq_test", "fi_cq_test", "fi_mr_test", "fi_cntr_test"}


def listed() -> list[tuple[str, bool]]:
    """Each command of the README, and whether it passes."""
    _, _, section = README.read_text().partition("\n## fabtests\n")
    rows = re.findall(r"^\| (`.*`) \| (passed|refused)\b", section, re.MULTILINE)
    return [(each, word == "passed") for cell, word in rows for each in re.findall("`(.*?)`", cell)]


def test_listed__both_kinds() -> None:
    found = listed()
    assert {passes for _, passes in found} == {True, False}
    assert len({command for command, _ in found}) == len(found) > 30


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=4, t1=2, rate="500mbit") as bed, Hosts(bed) as hosts:
        for host in ("h0", "h1"):
            hosts.agent(host)
        yield bed


@pytest.mark.slow
@pytest.mark.skipif(
    not FABTESTS.is_dir() or not (FOLDER / PROVIDER).exists(),
    reason="needs MRC_FABTESTS, the folder of libfabric's fabtests",
)
@pytest.mark.parametrize(("command", "passes"), listed())
def test_fabtests(bed: Testbed, command: str, passes: bool) -> None:
    name, *options = command.split()
    words = [str(FABTESTS / name), "-p", "mrc", *options]
    begin = partial(
        popen, bed, environment={"FI_PROVIDER_PATH": str(FOLDER)}, stderr=subprocess.STDOUT
    )
    with ExitStack() as stack:
        if name in ALONE:
            ends = [begin("h0", *words)]
        else:
            words.insert(1, f"-E={PORT}")
            server = stack.enter_context(begin("h1", *words))
            stack.callback(server.kill)
            until(lambda: sockets(server.pid, PORT, LISTENING) or server.poll() is not None)
            address = str(bed.shape.addresses.oob_ipv4(1).ip)
            ends = [begin("h0", *words, address), server]
        stack.enter_context(ends[0])
        stack.callback(ends[0].kill)
        said = [ends[0].communicate(timeout=PATIENCE)[0]]
        if not passes:  # its server may wait for ever
            assert ends[0].returncode != 0, said
            return
        said += [each.communicate(timeout=PATIENCE)[0] for each in ends[1:]]
        assert [each.returncode for each in ends] == [0] * len(ends), said
