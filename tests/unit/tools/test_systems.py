# SPDX-License-Identifier: Apache-2.0
"""tools/systems: what it types, its table, and what it runs in a root: layers, ends, logs; and how
tools/maintainers/kernels reads the output of a guest.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import debian
import mounts
import pytest
import pytest_log
from debian import DebianError
from project_text import ROOT, tool
from slowness import PATIENCE

from mrc.linux import netns

systems = tool("systems")


README = """\
```sh
tools/setup          # make .venv
eval "$(mrc completion bash)"  # or zsh: TAB
tools/test      # run
pip install dist/*.whl    # on other hosts
```
Then:
```sh
tools/setup --no such option
```
"""


def arguments(**changed: object) -> argparse.Namespace:
    return argparse.Namespace(**{"run": None, "tests": "", "all": False, "turn": False, "rows": []}
                              | changed)  # fmt: skip


def test_quick_start__of_the_readme_is_what_the_rows_type() -> None:
    here, there = systems.on_other_hosts(systems.quick_start((ROOT / "README.md").read_text()))
    assert [systems.command_of(line) for line in here][:2] == [
        "tools/setup", ". .venv/bin/activate",
    ]  # fmt: skip
    assert {"tools/demo", "tools/test", "tools/wheel"} <= set(map(systems.command_of, here))
    assert len(there) == 1 and "dist" in there[0]


def test_quick_start__is_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no block"):
        systems.quick_start(README)
    first, _, _ = README.partition("Then:")
    lines = systems.quick_start(first)
    assert [systems.command_of(line) for line in lines] == [
        "tools/setup", 'eval "$(mrc completion bash)"', "tools/test", "pip install dist/*.whl",
    ]  # fmt: skip


def test_for_the_clone__changes_nothing_in_a_whole_run() -> None:
    lines = ["tools/setup    # set up", "tools/demo", "tools/test   # run the tests"]
    typed = systems.for_the_clone
    assert typed(arguments(), lines) == lines
    assert typed(arguments(tests="-k srv6 -x"), lines) == [*lines[:2], "tools/test -k srv6 -x"]
    assert typed(arguments(run="gcc --version"), lines) == [lines[0], "gcc --version"]


def test_chosen__each_row_gets_its_turn_by_the_commit() -> None:
    """Of those that have passed: the others would stop every change until somebody mends them."""
    first, *others = systems.ROWS
    failed = systems.Trial(others[0], arguments(), failed=["tools/test"]).line("5dd6393d")
    passed = [systems.Trial(row, arguments()).line("5dd6393d") for row in others[1:]]
    page, whole = "\n".join([failed, *passed]), arguments(turn=True)
    pairs = [systems.chosen(whole, f"{number:040x}", page) for number in range(len(passed))]
    assert pairs == [[first, other] for other in others[1:]]
    assert systems.chosen(whole, "0", failed) == [first]
    assert systems.chosen(arguments(all=True), "0", "") == list(systems.ROWS)
    assert systems.chosen(arguments(rows=[others[1].name]), "0", "") == [others[1]]


def test_rows__have_each_circumstance_once() -> None:
    names = [row.name for row in systems.ROWS]
    assert len(set(names)) == len(names)
    unusual = sorted(filter(None, (row.circumstance for row in systems.ROWS)))
    assert unusual == sorted(filter(None, systems.CIRCUMSTANCES))


def test_debian_packages__are_those_of_set_up() -> None:
    table = (
        "# kind\nbuild  gcc  program:gcc\ntest git program:git\nbed git program:git\nci clang x\n"
    )
    assert systems.debian_packages(table) == ["gcc", "git"]


def test_renew__keeps_the_lines_of_other_rows() -> None:
    rows = [row.name for row in systems.ROWS]
    page = f"text\n{systems.BEGIN}| `{rows[2]}` | old |\n| `debian-gone` | old |\n{systems.END}\n"
    line = f"| `{rows[1]}` | new |"
    renewed = systems.renew(page, [line])
    assert renewed == f"text\n{systems.BEGIN}{line}\n| `{rows[2]}` | old |\n{systems.END}\n"
    assert systems.renew(renewed, [f"| `{rows[2]}` | new |"]).count("new") == 2


def test_renew__the_page_has_the_markers() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    assert systems.renew(page, []) == page


def test_line__names_what_failed() -> None:
    trial = systems.Trial(systems.ROWS[0], arguments(), seconds=600.0)
    trial.counts.update(passed=7, skipped=2)
    assert trial.line("5dd6393d0000").endswith("| 5dd6393d | 600 | 7 + 2 |")
    trial.failed += ["tools/test", "tests/a.py::test_b"]
    assert trial.line("5dd6393d0000").endswith("| 600 | failed: tools/test; tests/a.py::test_b |")


def test_show__a_demo_on_a_busy_machine_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    trial = systems.Trial(systems.ROWS[0], arguments(work=Path()))
    trial.show("tools/demo", systems.TOO_BUSY, 3, "busy\n")
    assert not trial.failed
    trial.show("tools/wheel", systems.TOO_BUSY, 3, "cannot\n")
    printed = "FAILED tests/a.py::test_b - x\n=== 1 failed, 2 passed in 1s ===\n"
    for command, code in (("tools/test", 1), ("tools/test; true", 0)):
        trial.show(command, code, 3, printed)
    assert trial.failed == ["tools/wheel", "tools/test", "tests/a.py::test_b",
                            "tools/test; true", "tests/a.py::test_b"]  # fmt: skip
    assert trial.counts == {"passed": 4, "failed": 2}
    printed = capsys.readouterr().out
    assert "    cannot\n" in printed and "    failed: tests/a.py::test_b\n" in printed


@pytest.mark.parametrize(
    ("text", "summary", "ended"),
    [
        (  # several runs, on a terminal
            "\x1b[32m=== \x1b[1m3 passed\x1b[0m, 1 skipped in 1s ===\x1b[0m\r\n"
            "=== 4 passed in 2s ===\r\n", "7 passed, 1 skipped", True,
        ),
        ("set-up: done\n", "", False),
    ],
)  # fmt: skip
def test_outcome__of_runs(text: str, summary: str, ended: bool) -> None:
    """Those that failed, and those that were cut off: below, of kernels."""
    found = pytest_log.outcome(text)
    assert (found.summary, found.failed, found.ended) == (summary, [], ended)
    assert found.skipped == []


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder for layers. The folder for temporary files may be on overlayfs, which cannot be a
    layer of itself.
    """
    with mounts.mounted(tmp_path) as folder:
        yield folder


@pytest.mark.skipif(netns.lacks() != "", reason="overlayfs and pivot_root require root")
class TestLayer:
    """The root file system of these tests is this machine's own."""

    @pytest.mark.parametrize(
        ("circumstance", "typed", "shown"),
        [
            ("", "test ! -t 0 && ! : < /dev/tty && echo none", "none"),
            ("terminal", "test -t 0 && : < /dev/tty && stty size", "24 80"),
            ("busy", "jobs -p | wc -l", "4"),
            ("overlay", "stat -f -c %T /tmp", "overlayfs"),
            ("umask", "umask", "0077"),
            ("home-read-only", "touch $HOME/x 2> /dev/null || echo refused", "refused"),
            ("no-sys-admin", "mount -t tmpfs x /mnt 2> /dev/null || id -u", "0"),
        ],
    )
    def test_type__in_each_circumstance(
        self, circumstance: str, typed: str, shown: str, work: Path
    ) -> None:
        row = systems.Row(systems.DEBIAN_13, "root", circumstance)
        trial = systems.Trial(row, arguments(work=work, minutes=PATIENCE / 60))
        setting = systems.CIRCUMSTANCES[circumstance]
        with debian.layer(Path("/"), work) as layer:
            session = systems.session("/", setting.typed, [typed, "false"])
            trial.type(layer, "root", session, setting)
        text = trial.log.read_text().replace("\r", "").splitlines()
        assert shown in text, text
        assert trial.failed == ["false"]

    def test_type__ends_what_takes_too_long(self, work: Path) -> None:
        trial = systems.Trial(systems.ROWS[0], arguments(work=work, minutes=0.001))
        with debian.layer(Path("/"), work) as layer:
            trial.type(layer, "root", systems.session("/", ":", ["sleep 1000"]))
        assert trial.failed == ["the session"]


def test_need_debootstrap__an_ordinary_user_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DebianError, match="requires root"):
        debian.need_debootstrap()


# ---- Kernels: the output of a guest --------------------------------------------------------------


CUT_OFF = """\
collected 4 items

tests/netns/test_a.py::test_one PASSED                            [ 25%]
tests/netns/test_a.py::test_two[a b] FAILED                       [ 50%]
tests/netns/test_a.py::test_three SKIPPED (no netem)              [ 75%]
tests/netns/test_a.py::test_four """
WHOLE = (
    CUT_OFF
    + """PASSED                           [100%]
=========================== short test summary info ============================
SKIPPED [1] tests/netns/test_a.py:7: no netem
FAILED tests/netns/test_a.py::test_two[a b] - assert False
============= 1 failed, 2 passed, 1 skipped in 7.00s =============
mrc-kernels-exit: 1
"""
)


kernels = tool("maintainers/kernels")


def test_read_log__of_a_whole_run() -> None:
    result = kernels.Result("6.1", "6.1.0")
    kernels.read_log(result, WHOLE)
    assert (result.exit_code, result.summary) == (1, "1 failed, 2 passed, 1 skipped")
    assert result.failed == ["tests/netns/test_a.py::test_two[a b]"]
    assert result.skipped == ["[1] tests/netns/test_a.py:7: no netem"]


def test_read_log__of_a_run_that_was_cut_off() -> None:
    result = kernels.Result("6.1", "6.1.0", summary="not finished after 5 minutes")
    kernels.read_log(result, CUT_OFF)
    assert result.exit_code is None
    assert (
        result.summary == "not finished after 5 minutes; until then 1 failed, 1 passed, 1 skipped"
    )
    assert result.failed == ["tests/netns/test_a.py::test_two[a b]"]
