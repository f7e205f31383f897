# SPDX-License-Identifier: Apache-2.0
"""A test bed as an object: up, down, fail, heal, and commands inside its hosts.

A program that `exec` or `shell` started, and each of its children, has MRC_TESTBED with the folder
of the test bed in its environment, and ends with it. All others were brought in by other means.
"""

from __future__ import annotations

import json
import os
import pwd
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Self

from msgspec.structs import asdict, replace

from mrc.errors import ArgumentError, MrcError, StateError
from mrc.fabric.hostconfig import HostConfig
from mrc.linux import netns, system
from mrc.results import like
from mrc.testbed import build, emulator, rootless, state
from mrc.testbed.build import Ready
from mrc.testbed.faults import Fault, Hop, Mode, place_faults
from mrc.testbed.plan import BedPlan, MachineShare, Node, emulator_config, make_plan
from mrc.testbed.results import BedProgram, LinkCounters, Removed
from mrc.testbed.shape import (
    DEFAULT_NAME,
    DEFAULT_RATE,
    FABRIC,
    Shape,
    as_argument_error,
    check_name,
    extra,
    is_host,
    parse_rate,
    part_name,
    rate_text,
)
from mrc.testbed.state import BedState
from mrc.testbed.topology import Target
from mrc.units import counted

_NAMED = 6  # parts that an error names

# `ip netns exec` gives each command its own mounts. A user namespace cannot write to /etc/netns.
_WITH_NAMES = """\
if [ -e /etc/hosts ]; then mount --bind "$0" /etc/hosts
else echo "mrc: names of hosts are unknown without the file /etc/hosts: touch /etc/hosts" >&2; fi
resolver="${0%/*}/resolv.conf"
if [ -e "$resolver" ] && [ -e /etc/resolv.conf ]; then mount --bind "$resolver" /etc/resolv.conf; fi
exec "$@"
"""


class Testbed:
    """A named fabric of namespaces. As a context manager it is up inside and removed afterwards.

    with Testbed("try", planes=2, rate="1gbit") as bed:
        argv, env = bed.host_command("h0", ["mrc", "paths", "h1"])
        subprocess.run(argv, env=env, check=True)
        bed.fail("plane:2")

    Every call blocks, and raises an MrcError with one line: ArgumentError for an invalid value,
    StateError if the test bed is not up, NetlinkError if the kernel refuses a request.
    """

    __test__ = False  # pytest would collect a class of this name

    def __init__(
        self, name: str = DEFAULT_NAME, *, rate: str = DEFAULT_RATE, delay_ns: int = 0, **shape: Any
    ) -> None:
        """`shape`: the fields of Shape. `rate` and `delay_ns` apply to every link."""
        with as_argument_error():
            check_name(name)
            rate_bps = parse_rate(rate)
            every = {"host_rate_bps": rate_bps, "fabric_rate_bps": rate_bps}
            every |= {"core_rate_bps": rate_bps, "core_delay_ns": delay_ns}
            every |= {"host_delay_ns": delay_ns, "fabric_delay_ns": delay_ns}
            self.shape = Shape(**every | shape)
        self.name = name
        self.machines: Any = None
        """those of `mrc.lab.machines`, of which this one has a part; None: it has all of it"""

    @classmethod
    def of(cls, name: str, shape: Shape, machines: Any = None) -> Self:
        """A test bed of this shape, or the part of it that is on this machine."""
        bed = cls(name)
        bed.shape, bed.machines = shape, machines
        return bed

    @staticmethod
    def spanning(name: str, shape: Shape, machines: Any) -> Testbed:
        """A test bed of this shape, on this machine alone or over several."""
        kind: type[Testbed] = Testbed if machines is None else extra("remote").SpreadTestbed
        return kind.of(name, shape, machines)

    @staticmethod
    def existing(name: str = DEFAULT_NAME) -> Testbed:
        """The test bed of this name, on this machine alone or over several. It must be up."""
        found = _stored(name)
        bed = Testbed.spanning(name, found.shape, found.machines)
        bed._state()
        return bed

    @staticmethod
    def named(name: str) -> Testbed:
        """As `existing`, but it may be down or half built."""
        found = state.load(name)
        if found is None:
            return Testbed(name)
        return Testbed.spanning(name, found.shape, found.machines)

    @staticmethod
    def require_programs() -> None:
        """Raises StateError for those that are missing and without which there is no test bed."""
        system.require("ip", "nft", "sh", "mount")

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.down()
        except (MrcError, OSError):
            self.down()  # what lacked for a moment, such as a descriptor, must not leave it behind

    @cached_property
    def plan(self) -> BedPlan:
        make = extra("outside").make_plan if self.shape.outside else make_plan
        plan: BedPlan = make(self.name, self.shape)
        if self.machines is not None:
            plan = extra("machines").part(plan, self.machines)
        return plan

    def up(self) -> bool:
        """Build it and wait until every link is up. Returns False if it was up already.

        Removes and rebuilds a test bed that an earlier `up` did not finish.
        """
        self.require_programs()
        with state.lock():
            if self._is_up():
                return False
            self._build()
            return True

    def is_current(self) -> bool:
        """Whether it is up with this shape, perhaps with parts missing."""
        found = state.load(self.name)
        return (
            found is not None
            and found.up
            and (found.shape, found.machines) == (self.shape, self.machines)
        )

    def _is_up(self) -> bool:
        """Whether it is up and whole. Raises StateError if another one of its name is."""
        found = state.load(self.name)
        if found is None or not found.up:
            return False
        if self.of(self.name, found.shape, found.machines).missing():
            return False
        if (found.shape, found.machines) == (self.shape, self.machines):
            return True
        theirs, ours = asdict(found.shape), asdict(self.shape)
        other = ", ".join(
            f"{key} {theirs[key]}, not {ours[key]}" for key in ours if theirs[key] != ours[key]
        )
        other = other or "another division between machines"
        raise StateError(
            f"test bed {self.name} is up with {other}: first run mrc testbed down "
            f"--name {self.name}"
        )

    def _build(self, *, up: bool = True) -> None:
        """Build it in place of whatever there is. A failure leaves nothing behind."""
        begun = BedState(self.shape, machines=self.machines)
        self._remove()
        try:
            state.save(self.name, begun)
            state.write_files(self.plan)
            build.build(self.plan)
            if self.shape.is_emulated:
                namespace = self.plan.nodes[FABRIC].namespace
                emulator.start(state.folder(self.name), namespace, emulator_config(self.shape))
            if self.shape.outside:
                extra("uplink").after_build(self.plan)
            if not self.shape.is_emulated:
                found = build.read_counters(self.plan, {}).items()
                drops = {str(hop): told["dropped"] for hop, told in found if told["dropped"]}
                state.write_early_drops(self.name, drops)
            state.save(self.name, replace(begun, up=up))
        except BaseException:
            self._remove()
            raise

    def down(self) -> Removed:
        """Remove it with all its files, and end what commands of `host_command` left running in
        it. Safe at any time.
        """
        with state.lock():
            return self._remove()

    def fail(
        self, target: str | Sequence[str], mode: str = Mode.SILENT, loss: float | None = None,
        **impairment: Any,
    ) -> None:  # fmt: skip
        """Inject a fault into a target, or into several at once. It replaces earlier faults of the
        same targets.

        Silent: the switch drops a share of the packets, by default all, and every link stays up.
        Down: the switch's side of the links goes down. `impairment`: the fields of Fault from
        corrupt on; with one, the default loss is 0. All of these except the rate require an
        emulated fabric or a kernel with netem.
        """
        targets = [target] if isinstance(target, str) else target
        with as_argument_error():
            lost = (0.0 if impairment else 1.0) if loss is None else loss
            fault = Fault(Mode(mode), lost, **impairment)
            self.set_faults({self._target(each): fault for each in targets})

    def set_faults(self, wanted: Mapping[Target, Fault], ready: Ready | None = None) -> None:
        """As `fail`, with Faults. When everything is prepared, this calls `ready`, and the faults
        take effect when `ready` returns; None: at once.

        Raises ValueError for a fault that this fabric or kernel cannot inject.
        """
        with state.lock():
            now = self._state()
            after = now.with_faults({str(target): fault for target, fault in wanted.items()})
            build.check_faults(self.plan, self._by_target(after))
            # Saved first: `heal` can then end a fault whose injection was interrupted.
            state.save(self.name, after)
            again = [str(each) for each in wanted if now.faults.get(str(each)) == wanted[each]]
            now = now.without(*again)
            build.change_faults(self.plan, self._by_target(now), self._by_target(after), ready)

    def heal(self, target: str = "all", ready: Ready | None = None) -> list[str]:
        """End the fault of a target, or all faults; returns the targets that were healed.

        Without `ready`, this also restores links of the target that somebody took down by hand.
        """
        wanted = self._target(target)
        with state.lock():
            now = self._state()
            healed = [each for each in now.faults if target == "all" or each == str(wanted)]
            after, failing = now.without(*healed), self._by_target(now)
            if ready is None:
                held_down = build.ends_down(self.plan, failing)
                healed += build.repair_links(self.plan, wanted, held_down)
            build.change_faults(self.plan, failing, self._by_target(after), ready)
            drained = list(map(self._target, now.drained))
            if drained and healed:  # a link that came up has all its routes again
                build.change_drains(self.plan, [], drained)
            state.save(self.name, after)
            return list(dict.fromkeys(healed))

    def drain(self, target: str) -> bool:
        """Move the hosts' traffic off a plane, switch or link, without loss. False: it was drained
        before.

        Raises ArgumentError if two hosts would lose their last path.
        """
        found = self._target(target)
        if self.shape.outside.hosts:
            real = self.shape.outside.hosts[0].host
            raise ArgumentError(f"{real} is a real host: its routes cannot be withdrawn from here")
        if found.direction:
            raise ArgumentError(f"{target}: a link is drained in both directions: {found.both}")
        with state.lock():
            now = self._state()
            if str(found) in now.drained:
                return False
            drained = list(map(self._target, now.drained))
            dead = [each for each, fault in self._by_target(now).items() if fault.is_dead]
            self._keep_a_path(found, drained, dead)
            state.save(self.name, replace(now, drained=(*now.drained, str(found))))
            build.change_drains(self.plan, drained, [*drained, found])
            return True

    def _keep_a_path(self, target: Target, drained: list[Target], dead: list[Target]) -> None:
        left = self.shape.without([*drained, *dead, target])
        pair = self.shape.cut_off(left)
        if pair is not None:
            lost = ", ".join(f"{each} is drained" for each in drained)
            lost += ", " * bool(lost and dead) + ", ".join(f"{each} fails" for each in dead)
            why = f", since {lost}" if lost else ""
            raise ArgumentError(
                f"{target}: h{pair[0]} and h{pair[1]} would lose their last path{why}"
            )

    def undrain(self, target: str = "all") -> list[str]:
        """Let traffic return to a drained target, or to all; returns those."""
        wanted = str(self._target(target))
        with state.lock():
            now = self._state()
            back = [each for each in now.drained if wanted in ("all", each)]
            left = tuple(each for each in now.drained if each not in back)
            build.change_drains(
                self.plan, *(list(map(self._target, each)) for each in (now.drained, left))
            )
            state.save(self.name, replace(now, drained=left))
            return back

    def drained(self) -> tuple[str, ...]:
        """The drained targets."""
        return self._state().drained

    def faults(self) -> dict[str, Fault]:
        """The current faults by target."""
        return self._state().faults

    def lost(self) -> dict[str, str]:
        """Ends of links, such as `h0:p2`, that somebody took down by hand, and the targets that
        heal them.
        """
        held_down = build.ends_down(self.plan, self._by_target(self._state()))
        found = build.lost_ends(self.plan, Target("all"), held_down)
        return {build.end_name(end): target for end, target in found.items()}

    def summary(self) -> str:
        """Its shape in one line, for people."""
        shape = self.shape
        rate = rate_text(shape.host_rate_bps)
        rates = shape.fabric_rate_bps, shape.core_rate_bps if shape.t2 else shape.fabric_rate_bps
        if rates != (shape.host_rate_bps, shape.host_rate_bps):
            rate += f" per host link, {rate_text(rates[0])} per uplink"
            rate += f", {rate_text(rates[1])} per link to a T2" if shape.t2 else ""
        elif shape.host_rate_bps is not None:
            rate += " per link"
        if shape.t2:
            switches = f"{counted(shape.t0, 'T0')}, {counted(shape.t1, 'T1')}"
            switches += f" and {counted(shape.t2, 'T2')} in {counted(shape.pods, 'pod')}"
        else:
            below = "" if shape.t0 == shape.hosts else f"{counted(shape.t0, 'T0')} and "
            switches = below + counted(shape.t1, "T1")
        emulated = ", emulated" if shape.is_emulated else ""
        return (
            f"{counted(shape.hosts, 'host')}, {counted(shape.planes, 'plane')},"
            f" {switches} per plane, {rate}, MTU {shape.mtu}{emulated}"
        )

    def can_delay(self) -> bool:
        """Whether its faults can delay, corrupt, duplicate and reorder packets."""
        return self.shape.is_emulated or build.has_netem(self.plan)

    def missing(self) -> list[str]:
        """Nodes that no longer exist although the test bed was not taken down."""
        gone = build.missing(self.plan)
        if self.shape.is_emulated and FABRIC not in gone:
            gone += [] if emulator.is_running(state.folder(self.name)) else [FABRIC]
        return gone

    def counters(self) -> dict[str, Any]:
        """Counters of an emulated fabric since its start: the fields of `struct mrc_emu_stats`."""
        return self._ask_status([])[0]

    def links(self) -> dict[str, dict[str, int]]:
        """Counters of each direction of each link, such as `h0>t0:1.0`, since the test bed came up.

        They are the fields of `struct mrc_emu_hop`; a kernel fabric has the fields that Linux
        counts.
        """
        if not self.shape.is_emulated:
            failing = self._by_target(self._state())
            told = {str(hop): each for hop, each in build.read_counters(self.plan, failing).items()}
            for name, count in state.early_drops(self.name).items():
                told[name]["dropped"] = max(0, told[name]["dropped"] - count)
            return told
        found = list(Hop.every(self.shape))
        return dict(zip(map(str, found), self._ask_status(found)[1], strict=True))

    def measure(self, seconds: float) -> dict[str, LinkCounters]:
        """Each direction of each link, with its load during the measurement. Takes `seconds`."""
        began = time.monotonic()
        before = self.links()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        limits = self.rates()
        return {
            name: like(
                LinkCounters,
                {"peak_bytes": None},  # in a kernel fabric
                now,
                bits_per_second=round((now["bytes"] - before[name]["bytes"]) * 8 / elapsed),
                rate_bps=limits[name],
            )
            for name, now in self.links().items()
        }

    def rates(self) -> dict[str, int | None]:
        """The rate that each direction of each link can carry now; None: no limit."""
        placed = place_faults(self._by_target(self._state()), self.shape)
        return {
            str(hop): next(
                (a for kind, a, _ in placed.get(hop, []) if kind == "rate"), usual.rate_bps
            )
            for hop, usual in Hop.every(self.shape).items()
        }

    def _ask_status(self, wanted: list[Hop]) -> tuple[dict[str, Any], list[dict[str, int]]]:
        self._state()
        if not self.shape.is_emulated:
            raise StateError(
                f"test bed {self.name} has a kernel fabric: only an emulated fabric has counters"
            )
        answer = emulator.ask(state.folder(self.name), {"do": "status", "hops": wanted})
        return answer["stats"], answer["hops"]

    @staticmethod
    def has_mptcp() -> bool:
        """Whether this kernel has MPTCP."""
        return _MPTCP_ENABLED.exists()

    def prepare_mptcp(self, host: str) -> None:
        """Make MPTCP connections of a host's programs use every plane."""
        number = self._host_number(host)
        self._state()
        with state.lock():
            namespace = self.plan.nodes[host].namespace
            _prepare_mptcp(namespace, self.shape.plane_addresses(number))

    def host_command(
        self, host: str, command: Sequence[str], *, user: str | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment that run a command inside a host, as `user` if given. Switches
        can be entered, too, by the names that faults use (`t1:2.0`), and `mgmt`.

        Each process on the way execs the next. The caller thus gets the command's own exit code,
        and signals reach the command itself.
        """
        node = self._node(host)
        if self.shape.outside.real_host(node.name) is not None:
            raise ArgumentError(
                f"{host} is a real host, so run its programs there: mrc testbed join {host} "
                "prints what it has to configure"
            )
        self._state()
        environment = dict(os.environ)
        environment[FOLDER_VARIABLE] = str(state.folder(self.name))
        environment.pop(
            HostConfig.ENVIRONMENT, None
        )  # a shell in a host may start a command in a switch
        if node.name in self.plan.configs:
            environment[HostConfig.ENVIRONMENT] = str(state.config_path(self.name, node.name))
        # mrc may be in a virtual environment that is not activated.
        ours = str(Path(sys.executable).parent)
        environment["PATH"] = f"{environment.get('PATH', os.defpath)}:{ours}"
        program, *_ = system.require("ip", "sh", "mount", *(["setpriv"] if user else []))
        argv = [program, "netns", "exec", node.namespace]
        argv += ["sh", "-c", _WITH_NAMES, str(state.hosts_path(self.name))]
        if user is not None:
            try:
                entry = pwd.getpwnam(user)
            except KeyError as exc:
                raise ArgumentError(f"no user {user}") from exc
            if not rootless.has_user(entry.pw_uid):
                raise ArgumentError(
                    f"user {user} does not exist in a user namespace: only root can use --user"
                )
            environment |= {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user}
            ids = (f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups")
            argv += ["setpriv", *ids, "--"]
        return [*argv, *command], environment

    @staticmethod
    def way_out() -> list[str]:
        """What runs a command with the network and names of the machine, in a host of a test bed;
        elsewhere nothing.
        """
        if FOLDER_VARIABLE not in os.environ:
            return []
        outside = _outside_namespaces()
        return ["nsenter", f"--net={outside}/net", f"--mount={outside}/mnt"]

    def processor_times(self) -> dict[str, system.Times]:
        """The time of the processors of each of its machines."""
        return {"": system.processor_times()}

    def connect(self) -> None:
        """Reach its other machines, if it has any, so that the next calls are fast."""

    def elsewhere(self, where: str) -> Any:
        """The other machine that has this host or switch; None: this one has it."""
        self._node(where)
        return None

    def shares(self) -> tuple[MachineShare, ...]:
        """What each of its machines has, and why it does not answer; empty: this one has all."""
        return ()

    def close(self) -> None:
        """Ends what it runs on other machines to ask them."""

    def _host_number(self, host: str) -> int:
        if host not in self.plan.configs:
            known = f"h0..h{self.shape.hosts - 1}"
            raise ArgumentError(f"no host {host} in test bed {self.name}, use {known}")
        return int(host.removeprefix("h"))

    def _node(self, where: str) -> Node:
        """The node of a host or a switch."""
        if is_host(where):
            self._host_number(where)
        with as_argument_error():
            return self.plan.nodes[self.shape.node_of(where)]

    def _state(self) -> BedState:
        """Raises StateError if the test bed is not up, or parts of it are gone."""
        found = _stored(self.name)
        if gone := [part_name(node) for node in self.missing()]:
            named = ", ".join(gone[:_NAMED]) + (", ..." if len(gone) > _NAMED else "")
            raise StateError(
                f"test bed {self.name} lacks {named}: rebuild it with the same mrc testbed up "
                f"--name {self.name}"
            )
        return found

    def _target(self, text: str) -> Target:
        with as_argument_error():
            return self.shape.target(text)

    def _by_target(self, now: BedState) -> dict[Target, Fault]:
        return {self._target(name): fault for name, fault in now.faults.items()}

    def _remove(self) -> Removed:
        folder = state.folder(self.name)
        there = folder.exists()
        emulator.stop(folder)
        ended, left = end_programs(build.namespaces(self.name), folder)
        if state.outside_path(self.name).exists():
            extra("uplink").before_down(self.name)
        removed = build.remove(self.name)
        state.forget(self.name)
        return Removed(
            name=self.name,
            removed=there or bool(removed),
            ended=tuple(ended),
            left=tuple(left),
            unreachable={},
        )


def _stored(name: str) -> BedState:
    found = state.load(name)
    if found is None or not found.up:
        raise StateError(f"test bed {name} is not up: mrc testbed up --name {name}")
    return found


# ---- Programs in it ------------------------------------------------------------------------------


FOLDER_VARIABLE = "MRC_TESTBED"
"""names the folder of the test bed to the programs in it"""

_GRACE_SECONDS = 3.0
_KILL_SECONDS = 3.0  # a killed process may still wait for a disk
_ROUNDS = 3  # a program may start others before it ends
_SHOWN = 100  # characters of a command


def end_programs(
    nodes: Mapping[str, str], folder: Path
) -> tuple[list[BedProgram], list[BedProgram]]:
    """End what `exec` and `shell` started in these namespaces (namespace -> node) of the test bed
    with this folder. Returns those that ended, and those that still run.

    This leaves all other programs, and the shell in which this command was typed.
    """
    kept, ended = _ancestors(), []
    for _ in range(_ROUNDS):
        found = find_programs(nodes, folder).items()
        ours = [program for program, is_ours in found if is_ours and program.pid not in kept]
        if not ours:
            break
        _end_some(ours)
        ended += ours
    left = find_programs(nodes, folder)
    running = {program.pid for program in left}
    return [each for each in ended if each.pid not in running], list(left)


def find_programs(nodes: Mapping[str, str], folder: Path) -> dict[BedProgram, bool]:
    """The programs in these namespaces, without this one, and whether mrc started them."""
    places = {}
    for namespace, node in nodes.items():
        with suppress(FileNotFoundError):
            places[_identity(netns.FOLDER / namespace)] = node
    pids = (int(each) for each in os.listdir("/proc") if each.isdigit()) if places else ()
    found = (_look_at(pid, places, folder) for pid in pids if pid != os.getpid())
    return dict(each for each in found if each is not None)


def _identity(namespace: Path) -> tuple[int, int]:
    found = namespace.stat()
    return found.st_dev, found.st_ino


def _look_at(
    pid: int, places: Mapping[tuple[int, int], str], folder: Path
) -> tuple[BedProgram, bool] | None:
    """The process, if it is in one of the namespaces. Processes of others cannot be seen."""
    process = Path("/proc", str(pid))
    try:
        node = places.get(_identity(process / "ns/net"))
        if node is None:
            return None
        words = (process / "cmdline").read_bytes().split(b"\0")
        environment = (process / "environ").read_bytes().split(b"\0")
        command = b" ".join(words).decode(errors="replace").strip()
        command = command or (process / "comm").read_text().strip()
    except OSError:  # it has ended
        return None
    ours = os.fsencode(f"{FOLDER_VARIABLE}={folder}") in environment
    return BedProgram(pid, node, command[:_SHOWN]), ours


def _end_some(programs: Iterable[BedProgram]) -> None:
    """Send SIGTERM, and SIGKILL to those that still run after some seconds."""
    with selectors.DefaultSelector() as running:
        for program in programs:
            with suppress(ProcessLookupError):
                running.register(os.pidfd_open(program.pid), selectors.EVENT_READ)
        try:
            for signum, seconds in (
                (signal.SIGTERM, _GRACE_SECONDS),
                (signal.SIGKILL, _KILL_SECONDS),
            ):
                for key in running.get_map().values():
                    with suppress(ProcessLookupError, PermissionError):
                        signal.pidfd_send_signal(key.fd, signum)
                _wait_for(running, time.monotonic() + seconds)
        finally:
            for key in running.get_map().values():
                os.close(key.fd)


def _wait_for(running: selectors.BaseSelector, deadline: float) -> None:
    """Wait for the ends of processes until the deadline, and forget those that ended."""
    while running.get_map() and (left := deadline - time.monotonic()) > 0:
        for key, _ in running.select(left):
            running.unregister(key.fd)
            os.close(key.fd)


def _outside_namespaces() -> Path:
    """The namespaces (/proc/PID/ns) from which `exec` or `shell` led into a host."""
    ours = _identity(Path("/proc/self/ns/net"))
    for pid in _ancestors():
        with suppress(OSError):
            found = Path("/proc", str(pid), "ns")
            if _identity(found / "net") != ours:
                return found
    return Path("/proc/1/ns")


def _ancestors() -> list[int]:
    """The processes that started this one, such as the shell in which it was typed; the nearest
    comes first.
    """
    found, pid = [], os.getppid()
    with suppress(OSError):  # a process that this user must not see
        while pid > 0:
            found.append(pid)
            status = Path("/proc", str(pid), "status").read_text()
            pid = int(status.split("PPid:")[1].split()[0])
    return found


# ---- MPTCP ---------------------------------------------------------------------------------------


MPTCP_WRAPPER = "mptcpize"
"""program that makes another program use MPTCP instead of TCP"""

_MPTCP_ENABLED = Path("/proc/sys/net/mptcp/enabled")
_MPTCP_ADDRESSES = 8


def _prepare_mptcp(namespace: str, addresses: Collection[IPv6Address]) -> None:
    """Announce these addresses of a host, if it does not announce them yet.

    Raises StateError where the kernel has no MPTCP.
    """
    with netns.inside(namespace):
        if not Testbed.has_mptcp():
            raise StateError("this kernel has no MPTCP: it requires CONFIG_MPTCP")
        _MPTCP_ENABLED.write_text("1")
    known = json.loads(_run_ip(namespace, "-j", "mptcp", "endpoint", "show") or "[]")
    announced = {IPv6Address(each["address"]) for each in known if ":" in each["address"]}
    wanted = list(addresses)[:_MPTCP_ADDRESSES]
    # Each end tries to join each address of the other one, and attempts count as subflows: with
    # fewer places the attempts of an accepting end, which reach no listener, keep good ones out.
    most = {"subflows": min(2 * len(wanted), _MPTCP_ADDRESSES), "add_addr_accepted": len(wanted)}
    words = (str(word) for limit in most.items() for word in limit)
    _run_ip(namespace, "mptcp", "limits", "set", *words)
    for address in wanted:
        if address not in announced:
            _run_ip(namespace, "mptcp", "endpoint", "add", str(address), "signal")


def _run_ip(namespace: str, *words: str) -> str:
    (program,) = system.require("ip")
    done = subprocess.run(
        [program, "-n", namespace, *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise StateError(f"cannot set up MPTCP in {namespace}: ip {' '.join(words)}: {reason}")
    return done.stdout
