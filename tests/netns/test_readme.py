# SPDX-License-Identifier: Apache-2.0
"""The commands of the READMEs, run as they stand there: the test bed's, and those for two hosts.

Changes are only what a test must change: durations, sizes, names of hosts, and an end for commands
that run until they are interrupted.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.apart import run_apart
from netns.processes import Hosts
from project_text import ROOT

from mrc.testbed.bed import Testbed


def block_of(page: str, word: str) -> str:
    """The first block of a page that has this word."""
    blocks = re.findall(
        r"^```\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    found: str = next(block for block in blocks if word in block)
    return found


BED = block_of("mrc/testbed/README.md", "mrc testbed up")
COPY = block_of("mrc/transfer/README.md", "host-a$")
MEASURE = block_of("mrc/perf/README.md", "host-a$")


def test_readme__the_test_bed(tmp_path: Path) -> None:
    script = BED.replace("head -c 100M", "head -c 20M")
    assert "20M" in script
    done = run_apart(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "inbox" / "big.bin").read_bytes() == (tmp_path / "big.bin").read_bytes()
    assert (tmp_path / "h0.pcap").stat().st_size > 1 << 20, "it captures while the file is sent"
    for word in (
        "2 hosts, 4 planes",
        "plane:2 fails: silent",
        "t1:4.1",
        "lab is down",
        "mrc can run",
    ):
        assert word in done.stdout, word


@pytest.mark.slow
def test_recipes__of_other_programs(tmp_path: Path) -> None:
    """Recipes of programs that are not installed are left out."""
    text = (ROOT / "mrc" / "testbed" / "README.md").read_text()
    (block,) = re.findall(r"^```\n(mrc testbed up\n.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = block.replace("-n 64M", "-n 1M").replace("-c 3", "-c 1").splitlines()
    assert sum("-n 1M" in line for line in lines) == 3
    needed = {line: line.partition(" -- ")[2].split()[:1] for line in lines}
    needed |= {line: [*needed[line], "mptcpize"] for line in lines if "--mptcp" in line}
    needed |= {line: [_ucx()] for line in lines if "ucx_perftest" in line or ":13337" in line}
    script = [line for line in lines if all(map(shutil.which, needed[line]))]
    done = run_apart("\n".join(script) + "\n", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 received" in done.stdout and "lab is down" in done.stdout
    if shutil.which("iperf3"):
        assert "ended in h1: iperf3 -s -D" in done.stdout


def _ucx() -> str:
    """Without a terminal on stdin, a ucx_perftest with MPI expects to be run by mpirun."""
    program = shutil.which("ucx_perftest") or "/nonexistent"
    with_mpi = Path(program).exists() and b"MPI_Init" in Path(program).read_bytes()
    return "/nonexistent" if with_mpi else program


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(f"readme-{os.getpid()}", planes=2, t1=1, rate="none") as bed:
        yield bed


def words_of(block: str, host: str) -> list[list[str]]:
    """The commands that the block gives to a host, without "mrc"."""
    lines = re.findall(rf"^{host}\$ mrc ([^#\n]*)", block, flags=re.MULTILINE)
    assert lines
    return [shlex.split(line) for line in lines]


def test_readme__copy_files(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "disk.img").write_bytes(os.urandom(1 << 20))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_bytes(b"meow")
    places: dict[str, str | Path] = {"host-b": "h1"}
    places |= {word: tmp_path / word for word in ("inbox", "disk.img", "photos")}
    (take,), (send,) = words_of(COPY, "host-b"), words_of(COPY, "host-a")
    hosts.start("h1", *(places.get(word, word) for word in take)).until_listening()
    hosts.start("h0", *(places.get(word, word) for word in send)).ends(0)
    for name in ("disk.img", "photos/cat"):
        assert (tmp_path / "inbox" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_readme__measure_and_watch(hosts: Hosts, tmp_path: Path) -> None:
    (serve,) = words_of(MEASURE, "host-b")
    hosts.start("h1", *serve).until_listening()
    for words in words_of(MEASURE, "host-a"):
        changed = ["h1" if word == "host-b" else "0.3" if word == "10" else word for word in words]
        if "top" in words:
            changed += ["--once", "-i", "0.1"]
        elif "perf" in words and "-t" not in words:
            changed += ["-t", "0.3"]
        client = hosts.start("h0", *changed)
        if "--watch" not in words:
            assert client.ends(0), words
            continue
        assert client.process.stdout is not None
        assert "paths to h1" in client.process.stdout.readline()
        client.process.send_signal(signal.SIGINT)
        client.ends(130)
