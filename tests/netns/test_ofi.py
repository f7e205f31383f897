# SPDX-License-Identifier: Apache-2.0
"""Programs over libmrc-fi in two hosts with two planes of 500 Mbit/s.

What libfabric promises them, and how they learn that peers, agents or planes have gone.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from cbuild import has_header
from netns.processes import Hosts, Mrc, popen, sockets
from slowness import PATIENCE, limit, until

from mrc.agent.agent import EXCHANGE_SECONDS
from mrc.agent.libraries import PROVIDER
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric
from mrc.versions import TCP_PORT

from .conftest import bed_of, fresh_name

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "mrc/lib"
PLANES = ("plane:1", "plane:2")
NO_PROVIDER = 3
PINGPONG_PORT = 47592
SIZES = ["64", "256", "1k", "4k", "64k", "1m"]
"""of the messages of fi_pingpong"""

pytestmark = [
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(
        not (FOLDER / PROVIDER).exists() or not has_header("rdma/fabric.h"),
        reason="needs libfabric: apt-get install libfabric-dev",
    ),
]


needs_tools = pytest.mark.skipif(
    not shutil.which("fi_pingpong"), reason="needs fi_pingpong: apt-get install libfabric-bin"
)


bed = bed_of(planes=2, t1=2, rate="500mbit")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of tests/ofi."""
    folder = tmp_path_factory.mktemp("ofi")
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
    for source in (ROOT / "tests/ofi").glob("*.c"):
        command = ["gcc", *flags, str(source), "-o", str(folder / source.stem), "-lfabric"]
        subprocess.run(command, check=True)
    return folder


started = partial(popen, environment={"FI_PROVIDER_PATH": str(FOLDER)})
"""a program that finds the provider, in a host"""


def ended(process: subprocess.Popen[str]) -> str:
    """What a program prints until it succeeds."""
    try:
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, out
    return out


@pytest.fixture(scope="module")
def lasting(bed: Testbed) -> Iterator[Hosts]:
    with Hosts(bed) as hosts:
        yield hosts


@pytest.fixture
def agents(lasting: Hosts) -> tuple[Mrc, Mrc]:
    """The same for all tests, or others after a test has ended one. They have no connection yet."""
    if any(each.process.poll() is not None for each in lasting.running):
        stop(lasting)
    if not lasting.running:
        lasting.agent("h0")
        lasting.agent("h1")
    here, there = lasting.running
    until(lambda: not sockets(here.process.pid, TCP_PORT, "01"))
    return here, there


def stop(agents: Hosts) -> None:
    agents.end()
    agents.running.clear()


@dataclass
class Talker:
    """The program in a host."""

    process: subprocess.Popen[str]
    address: str

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def calls(self, address: str) -> None:
        """It begins to send there."""
        assert self.process.stdin is not None
        self.process.stdin.write(address + "\n")
        self.process.stdin.flush()

    def error(self, within: float | None = None) -> tuple[int, str]:
        """The error and its reason, with which its operation ends; in a slow test within a time."""
        assert self.process.wait(PATIENCE if within is None else limit(within)) == 0
        number, _, reason = self.line().partition(" ")
        return int(number), reason


@pytest.fixture
def talker(bed: Testbed, programs: Path) -> Iterator[Start]:
    """Starts the program in a host."""
    running: list[Talker] = []

    def start(host: str, *words: str, bed: Testbed = bed) -> Talker:
        process = started(
            bed, host, programs / "talker", *words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        running.append(Talker(process, ""))
        running[-1].address = running[-1].line()
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.communicate()


Start = Callable[..., Talker]


def pair(talker: Start) -> tuple[Talker, Talker]:
    """A sender in h0 and a receiver in h1, which talk."""
    sender, receiver = talker("h0", "send"), talker("h1", "listen")
    sender.calls(receiver.address)
    assert sender.line() == receiver.line() == "talks"
    return sender, receiver


def gid(talker: Talker) -> str:
    """The host as an error names it."""
    return str(ipaddress.IPv6Address(bytes.fromhex(talker.address[:32])))


OFFERS = ["offer", "requests", "event-queue", "set-up", "one-way", "addresses"]
MESSAGES = [
    "any-source", "unknown-source", "selective", "flags", "searches", "claims", "cancels",
    "waits", "unfinished", "forked",
]  # fmt: skip
MEMORY = [
    "writes", "reads", "rights", "unwritable", "counts", "several", "several-buffers", "delivered",
]  # fmt: skip
ATOMICS = ["offer", "valid", "changes", "fetches", "compares", "atomic-rights"]


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("program", "cases"),
    [
        ("messages", OFFERS),
        ("messages", MESSAGES),
        ("memory", MEMORY),
        ("memory", ATOMICS),
        ("messages", ["computes"]),
        # It counts how often a thread sleeps, which a busy machine changes.
        pytest.param("messages", ["polls"], marks=pytest.mark.slow),
    ],
)
def test_manual_pages__what_they_promise(
    bed: Testbed, programs: Path, program: str, cases: list[str]
) -> None:
    assert ended(started(bed, "h0", programs / program, *cases)).split() == cases


@needs_tools
@pytest.mark.usefixtures("agents")
def test_fi_info__names_the_provider_once(bed: Testbed) -> None:
    assert ended(started(bed, "h0", "fi_info", "-p", "mrc")).startswith("provider: mrc\n")


@pytest.mark.default
@needs_tools
@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("mode", [pytest.param("msg", marks=pytest.mark.slow), "tagged"])
def test_fi_pingpong__between_two_hosts(bed: Testbed, mode: str) -> None:
    """It checks the content too (-c). Its two ends meet by TCP."""
    command = ["fi_pingpong", "-p", "mrc", "-e", "rdm", "-m", mode, "-c", "-I", "10"]
    server = started(bed, "h1", *command)
    try:
        until(lambda: sockets(server.pid, PINGPONG_PORT, "0A") or server.poll() is not None)
        for end in (started(bed, "h0", *command, "h1"), server):
            assert [line.split()[0] for line in ended(end).splitlines()] == ["bytes", *SIZES]
    finally:
        server.kill()


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("victim", [0, 1], ids=["sender", "receiver"])
def test_killed__the_other_one_is_told(talker: Start, victim: int) -> None:
    both = pair(talker)
    both[victim].process.kill()
    number, reason = both[1 - victim].error()
    assert number == errno.ECONNRESET
    assert reason == f"the process at {gid(both[victim])} has ended"


def test_close__after_what_the_sender_delivered(talker: Start) -> None:
    """TCP is faster than links of 10 ms, so the end of the receiver overtakes its answers."""
    with Testbed(fresh_name(), planes=2, delay_ns=10_000_000, fabric=Fabric.EMULATED) as far:
        hosts = Hosts(far)
        try:
            for host in ("h0", "h1"):
                hosts.agent(host)
            sender = talker("h0", "send", "once", bed=far)
            receiver = talker("h1", "listen", "once", bed=far)
            sender.calls(receiver.address)
            assert sender.line() == receiver.line() == "talks"
            assert sender.process.wait(PATIENCE) == receiver.process.wait(PATIENCE) == 0
        finally:
            hosts.end()


@pytest.mark.usefixtures("agents")
def test_all_planes_silent__one_gives_up(talker: Start, bed: Testbed) -> None:
    """The one with packets in flight. The other one may wait, and hears of it by the agents."""
    both = pair(talker)
    bed.fail(PLANES)
    errors = [each.error() for each in both]
    hosts = [gid(each) for each in both]
    lost = [(errno.ETIMEDOUT, f"all paths are lost to {host}") for host in reversed(hosts)]
    why = "ended the connection: its QP failed: no path to the peer answers"
    told = [(errno.ECONNRESET, f"the process at {host} {why}") for host in reversed(hosts)]
    assert errors in ([lost[0], lost[1]], [lost[0], told[1]], [told[0], lost[1]])


@pytest.mark.slow
@pytest.mark.usefixtures("agents")
def test_stopped__the_one_that_waits_learns_of_it(talker: Start) -> None:
    """It has nothing in flight, and the agents notice nothing: csrc/msg asks after 10 s of silence,
    and gets no answer for 9 s."""
    sender, receiver = pair(talker)
    sender.process.send_signal(signal.SIGSTOP)
    number, reason = receiver.error(within=22)
    assert (number, reason) == (errno.ETIMEDOUT, f"all paths are lost to {gid(sender)}")


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    "byte", [16, pytest.param(31, marks=pytest.mark.slow)], ids=["first", "last"]
)
def test_wrong_token__refused(talker: Start, byte: int) -> None:
    sender, receiver = talker("h0", "send"), talker("h1", "listen")
    wrong = bytearray.fromhex(receiver.address)
    wrong[byte] ^= 1
    sender.calls(wrong.hex())
    number, reason = sender.error()
    assert number == errno.ECONNREFUSED
    assert "no such endpoint" in reason
    again = talker("h0", "send")
    again.calls(receiver.address)  # the receiver has noticed nothing
    assert again.line() == receiver.line() == "talks"


@pytest.mark.slow
def test_no_agent__at_the_peer(talker: Start, agents: tuple[Mrc, Mrc]) -> None:
    sender, receiver = talker("h0", "send"), talker("h1", "listen")
    agents[1].process.kill()
    agents[1].process.wait()
    sender.calls(receiver.address)
    number, reason = sender.error(within=EXCHANGE_SECONDS + 5)  # it might start again
    assert number == errno.ECONNREFUSED
    assert "does mrc agent run there?" in reason


def test_no_agent__here(talker: Start, lasting: Hosts) -> None:
    stop(lasting)
    assert talker("h0", "send").process.wait(PATIENCE) == NO_PROVIDER


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_agents_restart__connected_peers_go_on(
    talker: Start, agents: tuple[Mrc, Mrc], hosts: Hosts, how: signal.Signals
) -> None:
    """A peer that connects meanwhile waits for the next agent; then ends are noticed again."""
    sender, receiver = pair(talker)
    waiting = talker("h0", "send"), talker("h1", "listen")
    for agent in agents:
        agent.process.send_signal(how)
        agent.process.wait(PATIENCE)
    waiting[0].calls(waiting[1].address)
    for name in ("h1", "h0"):  # the one that is knocked at first
        hosts.agent(name)
    assert waiting[0].line() == waiting[1].line() == "talks"
    assert sender.process.poll() is receiver.process.poll() is None
    # The agents have a connection for each QP again.
    until(lambda: len(sockets(sender.process.pid, TCP_PORT, "01")) >= 2)
    waiting[1].process.kill()
    assert waiting[0].error()[0] == errno.ECONNRESET
    receiver.process.kill()
    assert sender.error()[0] == errno.ECONNRESET


# ---- libfabric's own tests of RDM endpoints, as csrc/ofi/README.md lists them -------------------


FABTESTS = Path(os.environ.get("MRC_FABTESTS", "/nonexistent"))
FABTESTS_PORT = 47593  # of their exchange beside the provider
ALONE = {"fi_getinfo_test", "fi_dom_test", "fi_eq_test", "fi_cq_test", "fi_mr_test", "fi_cntr_test"}


def listed() -> list[tuple[str, bool]]:
    """Each command of the README, and whether it passes."""
    _, _, section = (ROOT / "csrc/ofi/README.md").read_text().partition("\n## fabtests\n")
    rows = re.findall(r"^\| (`.*`) \| (passed|refused)\b", section, re.MULTILINE)
    return [(each, word == "passed") for cell, word in rows for each in re.findall("`(.*?)`", cell)]


def test_listed__both_kinds() -> None:
    found = listed()
    assert {passes for _, passes in found} == {True, False}
    assert len({command for command, _ in found}) == len(found) > 30


@pytest.mark.usefixtures("agents")
@pytest.mark.slow
@pytest.mark.skipif(
    not FABTESTS.is_dir(),
    reason="needs MRC_FABTESTS, the folder of libfabric's fabtests",
)
@pytest.mark.parametrize(("command", "passes"), listed())
def test_fabtests(bed: Testbed, command: str, passes: bool) -> None:
    name, *options = command.split()
    words = [str(FABTESTS / name), "-p", "mrc", *options]
    begin = partial(started, bed, stderr=subprocess.STDOUT)
    with ExitStack() as stack:
        if name in ALONE:
            ends = [begin("h0", *words)]
        else:
            words.insert(1, f"-E={FABTESTS_PORT}")
            server = stack.enter_context(begin("h1", *words))
            stack.callback(server.kill)
            until(lambda: sockets(server.pid, FABTESTS_PORT, "0A") or server.poll() is not None)
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
