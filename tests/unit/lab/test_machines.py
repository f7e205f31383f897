# SPDX-License-Identifier: Apache-2.0
"""The machines of `mrc testbed up --on`, their parts, and a process on another machine: its
greeting, its answers and its end. `sh -c` stands for ssh.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path

import pytest

import mrc
from mrc.errors import (
    ArgumentError,
    BadFileError,
    ConnectError,
    NetlinkError,
    ResolveError,
    StateError,
)
from mrc.lab import machines
from mrc.lab.machines import BedMachine, Machines
from mrc.lab.remote import Session
from mrc.testbed import bed
from mrc.testbed.plan import BedLink, BedPlan, make_plan
from mrc.testbed.shape import MANAGEMENT, Shape


def test_read__names_for_ssh() -> None:
    found = machines.read("host-a,root@host-b")
    assert found.names == ["host-a", "root@host-b"]
    assert found.every[1].command(["part", "--name", "lab"]) == [
        "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
        "root@host-b", "exec mrc testbed part --name lab",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["host-a", "a,a", "a,", ""])
def test_read__refuses_fewer_than_two(text: str) -> None:
    with pytest.raises(ArgumentError, match="at least two machines"):
        machines.read(text)


def test_read__a_file(tmp_path: Path) -> None:
    path = tmp_path / "on.toml"
    path.write_text(
        'port = 50000\nmrc = "/opt/mrc"\nreach = "lxc exec {name} -- sh -c"\n'
        '[[machines]]\nname = "a"\naddress = "198.51.100.1"\n'
        '[[machines]]\nname = "b"\nreach = "ssh b-admin"\nmrc = "mrc"\n'
    )
    assert machines.read(str(path)) == Machines(
        (
            BedMachine("a", "198.51.100.1", "lxc exec {name} -- sh -c", "/opt/mrc"),
            BedMachine("b", "", "ssh b-admin", "mrc"),
        ),
        50000,
    )
    words = machines.read(str(path)).every[0].command(["exec", "h0", "--", "echo", "a  b"])
    assert words == [
        "lxc",
        "exec",
        "a",
        "--",
        "sh",
        "-c",
        "exec /opt/mrc testbed exec h0 -- echo 'a  b'",
    ]


@pytest.mark.parametrize(
    "text, cause",
    [
        ("ports = 1", "ports: is unknown"),
        ("[[machines]]\n", r"machines\[0\].name: is missing"),
        ('[[machines]]\nname = "a"\naddress = "b"\n', "'b' does not appear to be"),
        ('reach = ""\n[[machines]]\nname = "a"\n', "reach: is empty"),
        ("port = 70000", "port: must be a whole number from 1 to 65535"),
    ],
)
def test_read__a_wrong_file(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "on.toml"
    path.write_text(text)
    with pytest.raises(BadFileError, match=cause):
        machines.read(str(path))


def of(*addresses: str) -> Machines:
    return Machines(tuple(BedMachine(f"m{i}", each) for i, each in enumerate(addresses)))


def test_located__finds_this_machine() -> None:
    found = machines.located(of("198.51.100.1", "127.0.0.2"))
    assert found.here == 1
    # What reaches it is the address that it sends from.
    own, mtu = machines.toward(found.every[0])
    assert found.every[1].address == own
    assert mtu >= 1280


def test_located__refuses() -> None:
    with pytest.raises(ArgumentError, match="of m0, m1, none is this machine"):
        machines.located(of("198.51.100.1", "198.51.100.2"))
    with pytest.raises(ArgumentError, match="m0 and m1 are all this machine"):
        machines.located(of("127.0.0.1", "127.0.0.2"))
    with pytest.raises(ResolveError, match=r"no address of m0: .*; give it in a file"):
        machines.located(of("", "127.0.0.1"))


def test_located__refuses_two_ip_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_is_here", lambda machine: machine.name == "m0")
    with pytest.raises(ArgumentError, match=r"m0 has 198.51.100.1, but m1 2001:db8::1"):
        machines.located(of("198.51.100.1", "2001:db8::1"))


def test_command__leaves_a_host_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command inside a host cannot reach other machines over the network of the host."""
    monkeypatch.setenv(bed.FOLDER_VARIABLE, "/run/mrc/lab")
    assert BedMachine("b").command(["part"])[:2] == [
        "nsenter",
        f"--net={bed._outside_namespaces()}/net",
    ]


def test_command__a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bed.FOLDER_VARIABLE, raising=False)
    assert BedMachine("b").command(["shell", "h0"], terminal=True)[:2] == ["ssh", "-t"]
    assert BedMachine("b", reach="x").command(["shell"], terminal=True)[0] == "x"


def test_look_up__takes_the_host_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object, **__: object) -> list[object]:
        assert host == "host-b"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = machines.located(Machines((BedMachine("m", "198.51.100.1"), BedMachine("root@host-b"))))
    assert found.here == 1


# ---- Partition -----------------------------------------------------------------------------------


SHAPES = {
    "default": (2, Shape()),
    "clos": (2, Shape(hosts=8, planes=4, t0=4, t1=3)),
    "three": (3, Shape(hosts=12, planes=2, t0=4, t1=4)),
    "absent": (3, Shape(hosts=6, planes=2, t0=3, absent=("link:h1.1", "t1:2.0", "uplink:1.0.1"))),
}
every_shape = pytest.mark.parametrize("count, shape", SHAPES.values(), ids=SHAPES)


def some_machines(count: int, here: int = 0) -> Machines:
    return Machines(tuple(BedMachine(f"m{i}", f"192.0.2.{i + 1}") for i in range(count)), here=here)


def parts(shape: Shape, count: int) -> list[BedPlan]:
    whole = make_plan("lab", shape)
    return [machines.part(whole, some_machines(count, here)) for here in range(count)]


@every_shape
def test_part__each_node_is_on_one_machine(count: int, shape: Shape) -> None:
    whole = make_plan("lab", shape)
    found = Counter(name for part in parts(shape, count) for name in part.nodes)
    assert found == Counter(dict.fromkeys(whole.nodes, 1) | {MANAGEMENT: count})
    configs = [name for part in parts(shape, count) for name in part.configs]
    assert configs == list(whole.configs)


@every_shape
def test_part__hosts_are_with_their_t0s(count: int, shape: Shape) -> None:
    for part in parts(shape, count):
        for host in part.configs:
            t0 = shape.t0_of(int(host[1:]))
            for plane in shape.planes_of(int(host[1:])):
                assert f"t0-{plane}-{t0}" in part.nodes


@every_shape
def test_part__each_link_is_whole_on_one_machine_or_has_an_end_on_two(
    count: int, shape: Shape
) -> None:
    whole = make_plan("lab", shape)
    ends = Counter(
        end[:2] for part in parts(shape, count) for each in part.links for end in each.ends
    )
    between = count * (count - 1)
    assert ends.total() == 2 * len(whole.links) + between
    assert set(ends) >= {end[:2] for link in whole.links for end in link.ends}
    tunnels = [
        (link.tunnel, here)
        for here, part in enumerate(parts(shape, count))
        for link in part.links
        if link.tunnel is not None
    ]
    by_vni = Counter(tunnel.vni for tunnel, _ in tunnels)
    assert set(by_vni.values()) == {2}
    for tunnel, here in tunnels:
        (other,) = (
            at for found, at in tunnels if (found.vni, found.end) == (tunnel.vni, 1 - tunnel.end)
        )
        assert other != here
        assert tunnel.remote == some_machines(count).every[other].ip


def test_part__two_beds_have_other_vnis() -> None:
    shape, found = Shape(), set()
    for name in ("lab", "lab2"):
        part = machines.part(make_plan(name, shape), some_machines(2))
        found.add(next(link.tunnel.vni >> 16 for link in part.links if link.tunnel))
    assert len(found) == 2


@every_shape
def test_part__management_leads_to_every_host(count: int, shape: Shape) -> None:
    """Each address of a host elsewhere leads to its machine, by the other end of that link."""
    of = machines.owners_of(make_plan("lab", shape), count)
    for here, part in enumerate(parts(shape, count)):
        node = part.nodes[MANAGEMENT]
        names = {name for link in part.links for at, name, _ in link.ends if at == MANAGEMENT}
        assert names == {f"m{at}" for at in range(count) if at != here} | {*part.configs}
        for host in make_plan("lab", shape).configs:
            number = int(host[1:])
            at = of[host]
            way = host if at == here else f"m{at}"
            (route,) = (
                each
                for each in node.routes
                if each.dst.network_address == shape.addresses.oob(number)
            )
            far = BedLink.LOWER if at >= here else BedLink.UPPER
            assert (route.dev, route.via) == (way, far)
            ipv4 = shape.addresses.oob_ipv4(number).ip
            assert [each[0] for each in node.ipv4 if each[2] == ipv4] == [way]
            known = [each for each in node.neighbours if each[1] == ipv4]
            assert [each[0] for each in known] == ([] if at == here else [way])
        for at in range(count):
            if at != here:
                own = BedLink.UPPER if at > here else BedLink.LOWER
                assert own_address(node.addresses, f"m{at}") == own


def own_address(addresses: tuple[tuple[str, object], ...], interface: str) -> IPv6Address:
    (found,) = (each for name, each in addresses if name == interface)
    return IPv6Address(str(found).partition("/")[0])


@pytest.mark.more
def test_shares__deal_out_t1s_of_every_plane() -> None:
    shape = Shape(hosts=64, planes=4, t0=8, t1=4)
    shares = machines.machine_shares(make_plan("lab", shape), some_machines(3), {})
    counts = [
        Counter(name[:5] for name in each.switches if name.startswith("t1")) for each in shares
    ]
    for plane in shape.plane_numbers():
        assert all(1 <= count[f"t1:{plane}."] <= 2 for count in counts)
    assert [len(each.hosts) for each in shares] == [24, 24, 16]


# ---- A process on another machine ----------------------------------------------------------------


HELLO = f'{{"mrc_testbed_part": "{mrc.__version__}"}}'


@contextmanager
def session(folder: Path, script: str) -> Iterator[Session]:
    program = folder / "mrc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    made = Session(BedMachine("b", reach="sh -c", mrc=str(program)), "lab", own=False)
    try:
        yield made
    finally:
        made.close()


def test_session__answers(tmp_path: Path) -> None:
    with session(
        tmp_path, f"echo Welcome; echo 17; echo '{HELLO}'; sed -u 's/.*/{{\"answer\":&}}/'"
    ) as b:
        b.send({"do": "this"})
        b.send({"do": "that"})
        assert [b.receive(), b.receive()] == [{"do": "this"}, {"do": "that"}]


@pytest.mark.parametrize(
    "kind, expected",
    [("ArgumentError", ArgumentError), ("NetlinkError", NetlinkError), ("Kind", StateError),
     ("ConnectError", ConnectError), ("no_such", StateError)],
)  # fmt: skip
def test_session__errors(tmp_path: Path, kind: str, expected: type[Exception]) -> None:
    answer = f'{{"error": "because", "kind": "{kind}"}}'
    with (
        session(tmp_path, f"echo '{HELLO}'; echo '{answer}'") as b,
        pytest.raises(expected, match=r"^because$"),
    ):
        b.receive()


def test_session__no_answer_says_the_last_line_on_stderr(tmp_path: Path) -> None:
    with (
        session(tmp_path, "echo one >&2; echo 'ssh: no route to host' >&2; exit 255") as b,
        pytest.raises(ConnectError, match=r"^ssh: no route to host$"),
    ):
        b.send({})
        b.receive()
    with session(tmp_path, "exit 3") as b, pytest.raises(ConnectError, match="with exit code 3"):
        b.receive()


def test_session__no_answer_leaves_nothing_to_write_at_the_end_of_the_command() -> None:
    """What a pipe has not taken must not be tried again when the interpreter ends: its errors are
    printed in the development mode, and always since Python 3.13.
    """
    program = """
from mrc.lab.machines import BedMachine
from mrc.lab.remote import Session
machine = Session(BedMachine("b", reach="sh -c", mrc="exit 3; "), "lab", own=False)
machine._child.process.wait()
machine.send({})
"""
    command = [sys.executable, "-X", "dev", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "BrokenPipeError" not in done.stderr


def test_session__another_version(tmp_path: Path) -> None:
    with (
        session(tmp_path, 'echo \'{"mrc_testbed_part": "0.0"}\'') as b,
        pytest.raises(StateError, match=r"^has mrc 0.0, and this machine .* same version on all"),
    ):
        b.receive()


def test_session__another_program(tmp_path: Path) -> None:
    with session(tmp_path, "yes") as b, pytest.raises(ConnectError, match="prints other lines"):
        b.receive()


def test_session__no_ssh() -> None:
    with pytest.raises(ConnectError, match=r"^no-such-ssh: command not found"):
        Session(BedMachine("b", reach="no-such-ssh b"), "lab", own=False)
