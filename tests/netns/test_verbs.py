# SPDX-License-Identifier: Apache-2.0
"""Debian's unmodified perftest over libmrc, between two hosts with four planes of 500 Mbit/s."""

from __future__ import annotations

import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from netns.processes import Hosts, Mrc, sent_bytes, sockets, until_it_sends
from printed import printed
from slowness import limit, until
from verbs.building import LIBRARY, compiled

from mrc.linux import netns
from mrc.testbed.bed import Testbed

from .conftest import bed_of

pytestmark = [
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(
        not LIBRARY.exists(),
        reason="libmrc is not built: apt-get install libibverbs-dev",
    ),
    pytest.mark.skipif(
        not shutil.which("ib_write_bw"), reason="needs ib_write_bw: apt-get install perftest"
    ),
]

PLANES, RATE_BPS = 4, 500_000_000
MUCH = PLANES * RATE_BPS // 80  # bytes in a tenth of a second
PORT = 18515  # where perftest listens
LISTENING = "0A"
PERFTEST = ("-d", "mrc0", "-F")  # a report even if the process stood still between two clocks
EMULATES = "libmrc: --rc: "


bed = bed_of(planes=PLANES, t1=2, rate="500mbit")


def until_listening(server: Mrc, port: int) -> None:
    def ready() -> bool:
        assert server.process.poll() is None, (server.lines, server.ends(0))
        return bool(sockets(server.process.pid, port, LISTENING))

    until(ready, server.lines)


def begin(hosts: Hosts, *command: str, rc: bool = False) -> tuple[Mrc, Mrc]:
    """Server and client of a test of perftest."""
    words = ("run", "--rc", "--", *command) if rc else ("run", "--", *command)
    server = hosts.start("h0", *words)
    until_listening(server, PORT)
    return server, hosts.start("h1", *words, "h0")


def table(output: str) -> list[list[float]]:
    """The rows of numbers that perftest prints."""
    return [
        [float(word) for word in line.split()]
        for line in output.splitlines()
        if re.fullmatch(r"[\s\d.]+", line) and line.strip()
    ]


def result(ends: tuple[Mrc, Mrc]) -> list[list[float]]:
    """Both ends succeed, without a word of libmrc; the client's table."""
    server, client = ends
    with ThreadPoolExecutor() as pool:  # many QPs are more lines than a pipe holds
        served = pool.submit(server.ends, 0)
        output = client.ends(0)
        served.result()
    lines = [line for line in server.lines + client.lines if line.startswith("libmrc")]
    assert not [line for line in lines if not line.startswith(EMULATES)]
    return table(output)


def bits_per_second(row: list[float]) -> float:
    """Of the average bandwidth, which perftest prints in MiB/s."""
    return row[3] * 8 * (1 << 20)


def moved_by_planes(hosts: Hosts) -> tuple[list[int], float]:
    """The bytes that each plane carries in a test of 2 s, and its bandwidth in bit/s."""

    def sent() -> list[int]:
        with netns.inside(hosts.bed.plan.nodes["h1"].namespace):
            return sent_bytes("thread-self")

    before = sent()
    (row,) = result(begin(hosts, "ib_write_bw", *PERFTEST, "-D", "2"))
    moved = [late - early for early, late in zip(before, sent(), strict=True)]
    # What was under way when its measurement began may count in it.
    assert len(moved) == PLANES and bits_per_second(row) < 1.1 * PLANES * RATE_BPS
    return moved, bits_per_second(row)


def test_write_bw__uses_all_planes(hosts: Hosts) -> None:
    """Not only probes, in the first test during which neither end stands still."""
    until(lambda: min(moved_by_planes(hosts)[0]) > 100_000)


@pytest.mark.slow
def test_write_bw__256_qps_connect_in_3_seconds(hosts: Hosts) -> None:
    """Both hosts on one machine. The test posts at once and so waits for the connections."""
    options = ["-q", "256", "-n", "5", "-s", "4096", "-t", "5"]
    (row,) = result(begin(hosts, "ib_write_bw", "-d", "mrc0", *options))
    rate = row[4] * 1e6
    assert row[1] / rate < limit(3)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ib_write_bw", "ib_write_lat"])
def test_write__every_size(hosts: Hosts, program: str) -> None:
    rows = result(begin(hosts, program, *PERFTEST, "-a", "-n", "100"))
    assert [row[0] for row in rows] == [2**power for power in range(1, 24)]


@pytest.mark.slow
def test_write_bw__a_fault_in_the_middle(hosts: Hosts, bed: Testbed) -> None:
    ends = begin(hosts, "ib_write_bw", "-d", "mrc0", "-D", "4")
    until_it_sends(ends[1], MUCH)
    bed.fail("plane:2")
    (row,) = result(ends)
    assert bits_per_second(row) > RATE_BPS, "more than one plane carries"


# ---- Emulated RC ----------------------------------------------------------------------------

LIVELY = 1 << 20
"""bytes that a program has sent when it runs"""
ENDLESS = ("-D", "600", "-f", "0")  # counts from the first second to the last one


def end_now(ends: tuple[Mrc, Mrc]) -> None:
    """The time of an endless test is over, for the ends that count it: the client's first."""
    for end in reversed(ends):
        status = Path(f"/proc/{end.process.pid}/status").read_text()
        (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        if int(caught, 16) >> (signal.SIGALRM - 1) & 1:
            end.process.send_signal(signal.SIGALRM)


@pytest.mark.parametrize(
    "command",
    [
        ("ib_send_bw", *PERFTEST, *ENDLESS),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in [
                ("ib_send_bw", *PERFTEST, *ENDLESS, "-b", "-q", "8"),
                ("ib_send_bw", *PERFTEST, "-n", "10000", "-e"),
                ("ib_read_bw", *PERFTEST, *ENDLESS),
                ("ib_atomic_bw", *PERFTEST, *ENDLESS, "-q", "4"),
                ("ibv_rc_pingpong", "-d", "mrc0", "-g", "0", "-s", "65536", "-n", "4000"),
                ("ibv_srq_pingpong", "-d", "mrc0", "-g", "0", "-s", "65536", "-n", "4000"),
            ]
        ),
    ],
    ids=" ".join,
)
def test_rc__goes_on_when_a_plane_dies(
    hosts: Hosts, bed: Testbed, command: tuple[str, ...]
) -> None:
    ends = begin(hosts, *command, rc=True)
    sender = ends[0 if "read" in command[0] else 1]
    until_it_sends(sender, LIVELY)
    bed.fail("plane:2")
    if "-D" in command:
        until_it_sends(sender, 64 * LIVELY)  # more than a server holds that does not poll
        end_now(ends)
    rows = result(ends)
    assert "pingpong" in command[0] or (len(rows) == 1 and rows[0][1] > 0)


# ---- MRC's C interface for control -----------------------------------------------------------


def test_control__every_function(hosts: Hosts, bed: Testbed, tmp_path: Path) -> None:
    """Profiles, probes and events; a second program finds what the first one has set up."""
    control = str(compiled(tmp_path) / "control")
    server = hosts.start("h1", "run", "--", control, "serve")
    until_listening(server, 7000)
    address = str(bed.shape.addresses.oob_ipv4(1).ip)
    words = [
        f"{path.plane}:{''.join(f'{usid:04x}' for usid in path.usids)}"
        for path in bed.shape.paths(0, 1)
    ]
    controller = hosts.start("h0", "run", "--", control, address, *words)
    assert controller.ends(0).splitlines() == [
        "device and ports", "format", "explicit EVs", "other EVs", "congestion control", "probes",
        "events",
    ]  # fmt: skip
    server.ends(0)
    assert "libmrc: packets over UDP have no STEV: use an SRv6 or a UDP format" in controller.lines
    assert hosts.start("h0", "run", "--", control, "look").ends(0) == "still there\n"
    shown = printed("agent", hosts.start("h0", "agent", "profiles", "--json").ends(0))
    evs = {each["name"]: each for each in shown["ev_profiles"]}
    assert list(evs) == ["default", "7", "8"] and evs["7"]["state"] == "ONLINE"
    assert set(evs["7"]["paths"]) == {path.name for path in bed.shape.paths(0, 1)}
    assert [each["name"] for each in shown["cc_profiles"]] == ["default", "3"]
    table = hosts.start("h0", "agent", "profiles").ends(0)
    assert re.search(r"^7 +ONLINE +0  t1:1.0 t1:1.1", table, re.MULTILINE)


# ---- Bad luck -------------------------------------------------------------------------------


@pytest.mark.default
def test_write_bw__the_peer_is_killed(hosts: Hosts) -> None:
    """The other end gets a completion with an error, at once."""
    server, client = begin(hosts, "ib_write_bw", "-d", "mrc0", "-D", "600")
    until_it_sends(client, MUCH)
    server.process.send_signal(signal.SIGKILL)
    output = client.ends(1)
    assert "status 12" in output + "\n".join(client.lines), "IBV_WC_RETRY_EXC_ERR"
