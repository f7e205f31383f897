# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation as commands and what they print, and the shells of their reader: one
for each host, whose commands are typed one after another.

A block marked `sh` has commands, one marked `python` a program. A block without a mark, after
commands, shows what these print; one marked `text` is a drawing. `host-a$ ` before a command names
the host where it is typed. Comments of HTML before a block, which readers do not see, say what a
test has to know:

    <!-- before: mrc testbed up -->             commands that run before the block
    <!-- after: mrc testbed down -->            or after it
    <!-- at a terminal: y -->                   the answer to each question of its commands
    <!-- not run: it takes hours -->            why no command of the block runs
    <!-- not run: `pip install`: no index -->   or none that has these words
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from netns.machines import Machine

_BLOCK = re.compile(
    r"^(?P<notes>(?:<!--(?:(?!-->).)*-->\n)*)```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(
    r"<!--\s*(before|after|at a terminal|not run): (?:`([^`]*)`: )?(.*?)\s*-->", flags=re.DOTALL
)
_PROMPT = re.compile(r"(host-[a-z])\$ ")


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed at once, of one line or more; `python` is a program."""

    text: str
    host: str = ""
    not_run: str = ""
    python: bool = False
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page; `text` is what it shows, if it has no commands."""

    line: int
    commands: tuple[Command, ...]
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The commands of a page and what they print, in their order.

    Raises ValueError for a comment that this module does not know, and for a command in a block
    that is not marked as one of commands.
    """
    seen_commands = False
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start("text")) + 1
        notes = [
            (kind, words or "", " ".join(said.split()))
            for kind, words, said in _NOTE.findall(found["notes"])
        ]
        if len(notes) != found["notes"].count("<!--"):
            raise ValueError(
                f"line {line}: a comment is none of before, after, at a terminal, not run"
            )
        if found["kind"] in ("sh", "python"):
            seen_commands = True
            yield Block(line, tuple(_commands(found["kind"], found["text"], notes)), "")
        elif found["kind"] in ("", "text"):
            if re.search(
                r"^(?:(?:mrc(?! testbed exec: )|pip|sudo|python) [-\w]+(?![\w:])|host-[a-z]\$ "
                r"|\$ |(?:tools|bench)/)", found["text"], re.MULTILINE
            ):  # fmt: skip
                raise ValueError(f"line {line}: a block with commands is marked sh")
            if seen_commands and found["kind"] == "":
                yield Block(line, (), found["text"])


def _commands(kind: str, text: str, notes: list[tuple[str, str, str]]) -> Iterator[Command]:
    for when, _, said in notes:
        if when == "before":
            yield Command(said)
    answer = next((said for when, _, said in notes if when == "at a terminal"), "")
    for each in [text] if kind == "python" else _typed(text):
        prompt = _PROMPT.match(each)
        words = each[prompt.end() :] if prompt else each
        reasons = [said for when, part, said in notes if when == "not run" and part in words]
        yield Command(
            words, prompt[1] if prompt else "", "; ".join(reasons), kind == "python", answer
        )
    for when, _, said in notes:
        if when == "after":
            yield Command(said)


def _typed(text: str) -> Iterator[str]:
    """Splits lines where the shell regards a command as complete."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        asked = subprocess.run(
            ["bash", "-n"], input=_PROMPT.sub("", pending), capture_output=True, text=True
        )
        if not asked.stderr and not pending.endswith("\\\n"):
            if pending.strip():
                yield pending
            pending = ""
    if pending:
        raise ValueError(f"no shell takes this: {pending}")


# ---- shells --------------------------------------------------------------------------------------

MRC = Path(sys.executable).parent / "mrc"
WATCHES = r"mrc (top|paths --watch|testbed view)\b"
"""commands that print until their reader stops them"""
JUDGES = r"mrc (sim|testbed run|conform judge)\b|\bping "
"""commands that exit with 1 if they print one of these verdicts"""
VERDICTS = r" NO$|>= .*  no *$|<= .*  no *$|^ +BROKEN | 100% packet loss"
SERVES = r"mrc (agent|recv|perf --server)\b.* & *(#.*)?$"
"""commands that serve in the background; their reader goes on when they listen"""
CM_LISTENS = """\
import os
from mrc.agent import socket as agent_socket
raise SystemExit(not agent_socket.profiles(agent_socket.name_of(os.environ)).rdma_cm)
"""
QUESTION = r"\[y/N(/always)?\] ?$"
SSH = """\
#!/bin/sh
# Stands for ssh, which its callers give options, a host and a command.
while :; do case $1 in -o | -p | -l | -i) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1; shift
exec "$(dirname "$0")/on-$host" sh -c "$*"
"""


class Shell:
    """A shell of a host. Its commands get no input, or a terminal where all questions get the same
    answer; their output goes to a file.
    """

    def __init__(self, enter: Sequence[str], folder: Path, log: Path, answer: str) -> None:
        self.enter, self.log, self.count, self.read = enter, log, 0, 0
        self.answer, self.answered = answer, 0
        (folder / "tmp").mkdir(exist_ok=True)
        environment = {
            "PATH": f"{folder.parent}/bin:{MRC.parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "SHELL": "/bin/sh",
            "TERM": "xterm", "LC_ALL": "C.UTF-8", "MRC_INSECURE": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }  # fmt: skip
        script, self.typing = os.pipe()
        argv = [*enter, "bash", f"/dev/fd/{script}"]
        if answer:  # somebody is asked, and nothing is trusted unasked
            del environment["MRC_INSECURE"]
            argv = ["script", "-qfc", f"exec {shlex.join(argv)}", str(log)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                argv, pass_fds=[script], cwd=folder, env=environment, start_new_session=True,
                stdin=subprocess.PIPE if answer else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if answer else output, stderr=output,
            )  # fmt: skip
        os.close(script)
        # As option of bash, -m needs a terminal. Without the trap bash ends with what Ctrl-C ends.
        self.type("set -m; trap : INT")
        self.wait(lambda: False)

    def type(self, command: str) -> None:
        self.count += 1
        self.older = self.child()
        os.write(self.typing, f"{command}\nprintf '\\001%d ended %d\\n' {self.count} $?\n".encode())

    def printed(self) -> str:
        return self.log.read_text(errors="replace").replace("\r", "")

    def has_printed(self, count: int) -> bool:
        return len(self.printed()) > count

    def code(self) -> int | None:
        """The exit code of the last command; None while it runs."""
        found = re.search(rf"\x01{self.count} ended (\d+)\n", self.printed())
        assert found or self.process.poll() is None, self.printed()
        return int(found[1]) if found else None

    def child(self) -> int | None:
        """The newest process of the shell: the command that runs in the foreground."""
        shell = _newest_child(self.process.pid) if self.answer else self.process.pid
        return _newest_child(shell) if shell else None

    def serves(self, command: str) -> bool:
        """Whether this command, the newest, listens, in whatever namespace."""
        if "rping" in command:  # it has no socket: the agent listens for it
            return subprocess.run([*self.enter, sys.executable, "-c", CM_LISTENS]).returncode == 0
        child = self.child()
        return child is not None and child != self.older and _listens(child)

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        if child := self.child():
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(child, signal.SIGINT)
        self.wait(lambda: False)
        assert self.code() in (0, 130), self.printed()

    def wait(self, enough: Callable[[], object]) -> None:
        """Until the command has ended, or this is true. pytest ends what hangs."""
        while self.code() is None and not enough():
            time.sleep(0.01)

    def reply(self) -> None:
        """Answers a question at the end of what is printed."""
        text = self.printed()
        if self.answer and re.search(QUESTION, text[self.answered :]):
            self.answered = len(text)
            assert self.process.stdin is not None
            self.process.stdin.write(f"{self.answer}\n".encode())
            self.process.stdin.flush()

    def end(self) -> None:
        os.close(self.typing)
        for group in filter(None, (self.child(), self.process.pid)):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def _newest_child(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    pids = children.read_text().split() if children.exists() else []
    return int(pids[-1]) if pids else None


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
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH)
        for host in hosts:
            script = f'cd {shlex.quote(str(folder / host.name))}; hostname {host.name}; exec "$@"'
            words = shlex.join([*host.enter, "unshare", "--uts", "sh", "-c", script, "sh"])
            (folder / "bin" / f"on-{host.name}").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        for each in (folder / "bin").iterdir():
            each.chmod(0o755)

    def shell(self, host: str, answer: str) -> Shell:
        """One that waits for a command."""
        name = host or "host-a"
        opened = self.shells.setdefault(name, [])
        for each in opened:
            if each.answer == answer and each.code() is not None:
                return each
        enter = [str(self.folder / "bin" / f"on-{name}")] if self.hosts else []
        log = self.folder / f"log-{name}-{len(opened)}"
        opened.append(Shell(enter, self.folder / name, log, answer))
        return opened[-1]

    def run(self, commands: Sequence[Command]) -> None:
        for command, following in zip_longest(commands, commands[1:]):
            shell = self.shell(command.host, command.answer)
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
                    continue
            elif following and following.host != command.host:
                shell.wait(partial(shell.serves, command.text))
            else:
                shell.wait(self.reply)
            if shell.code() is not None:
                judge(command, shell.code(), shell.printed()[before:])
                while re.search(SERVES, command.text) and not shell.serves(command.text):
                    assert shell.child(), shell.printed()
                    time.sleep(0.01)
        for shell in chain.from_iterable(self.shells.values()):
            if shell.code() is None:
                shell.interrupt()

    def reply(self) -> bool:
        """Answers whatever is asked; never enough."""
        for shell in chain.from_iterable(self.shells.values()):
            shell.reply()
        return False

    def news(self) -> str:
        """What all commands have printed since this was asked before."""
        found = []
        for shell in chain.from_iterable(self.shells.values()):
            text = shell.printed()
            found.append(text[shell.read :])
            shell.read = len(text)
        return re.sub(r"\x01\d+ ended \d+\n", "\n", "".join(found))

    def end(self) -> None:
        for shell in chain.from_iterable(self.shells.values()):
            shell.end()


def judge(command: Command, code: int | None, printed: str) -> None:
    """Whether a command that has ended did so as it should."""
    said = f"{command.text}exit code {code}\n{printed}"
    if code == 1 and re.search(JUDGES, command.text):
        assert re.search(VERDICTS, printed, re.MULTILINE), said
    else:
        assert code == 0, said
