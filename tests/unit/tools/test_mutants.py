# SPDX-License-Identifier: Apache-2.0
"""The changes that are made in C and Python, their names, and the excused ones."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from pathlib import Path

import pytest
from mutation import c_trial, mutants, python_trial, trial
from project_text import ROOT, tool
from slowness import PATIENCE


def changed(line: str) -> set[str]:
    """The mutants of a line that is the body of a function."""
    text = f"int f(int a) {{\n  {line}\n}}\n"
    return {mutant.after.strip() for mutant in mutants.of_c("csrc/core/f.c", text)}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("if (a < b) return;", {"if (a <= b) return;", "if (true) return;", "if (false) return;"}),
        ("const int n = a && !b;", {"const int n = a || !b;", "const int n = a && b;"}),
        ("const int n = a + 3;", {"const int n = a - 3;", "const int n = a + 4;"}),
        ("const int n = a & 0x40;", {"const int n = a | 0x40;", "const int n = a & 128;"}),
        ("n->count += a;", {"n->count -= a;", ";"}),
        ("n->count++;", {"n->count--;", ";"}),
        ("mrc_list_append(&list, node);", {";"}),
        ("const int n = mrc_min_u32(a, b);", {"const int n = mrc_max_u32(a, b);"}),
        ("return true;", {"return false;"}),
        ("break;", {";"}),
        ("struct f g = {0};", set()),
        ('say("a < b + 1"); /* a < b */', {";"}),
        ("mrc_assert(a < b);", set()),
        ("uint32_t *places = &a->places;", set()),
    ],
)
def test_mutants__of_a_line(line: str, after: set[str]) -> None:
    assert changed(line) == after


def changed_python(body: str, head: str = "def f(a, b):") -> set[str]:
    """The mutants of a statement that is the body of a function."""
    text = f"{head}\n    {body}\n"
    return {mutant.after.strip() for mutant in mutants.of_python("mrc/f.py", text)}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("c = a < b  # < b", {"c = a <= b  # < b"}),
        ("c = (a) is not (b)", {"c = (a) is (b)"}),
        ("c = a not in b", {"c = a in b"}),
        ("c = a and not b", {"c = a or not b", "c = a and b"}),
        ("c = a * 3 + b", {"c = a / 3 + b", "c = a * 4 + b", "c = a * 3 - b"}),
        ("c = min(a, 100)", {"c = max(a, 100)", "c = min(a, 200)"}),
        ("c = a if b else None", {"c = a if True else None", "c = a if False else None"}),
        ("c = [x for x in a if x]", {"c = [x for x in a if True]"}),
        ("a = b", {"pass"}),
        ("self.a += b", {"self.a -= b", "pass"}),
        ("self.a[b] = True", {"self.a[b] = False", "pass"}),
        ("await a.close()", {"pass"}),
        ("raise a", {"pass"}),
        ("return", {"pass"}),
        ("return a(b)", set()),
        ("'1 < 2'", set()),
        ("c: dict[1, 2] = a", set()),
        ("assert a < b", set()),
        ("logger.info('%d', a + 1)", set()),
        ("raise a(f'{a + 1}')", {"pass"}),
    ],
)
def test_mutants__of_a_line_of_python(line: str, after: set[str]) -> None:
    assert changed_python(line, "async def f(self, a, b):") == after


def test_mutants__of_a_returned_value() -> None:
    assert changed_python("return a(b)", "def f(a, b) -> bool:") == {"return not (a(b))"}
    assert changed_python("return a(b)", "def f(a, b) -> int | None:") == {"return None"}


def test_mutants__leave_alone_what_is_no_body_in_python() -> None:
    text = "A = 1 + 2\nclass C:\n    a: int = 1\n    def __repr__(self):\n        return 1 + 2\n"
    assert mutants.of_python("mrc/f.py", text) == []
    assert changed_python("self.a = b", "def __init__(self, b=1 + 2):") == set()


def test_mutants__of_a_statement_of_several_lines() -> None:
    text = "class C:\n    def f(self):\n        g(\n            'ä', a < b\n        )\n"
    statement, comparison = sorted(
        mutants.of_python("mrc/f.py", text), key=lambda mutant: mutant.line
    )
    assert (comparison.function, comparison.line) == ("C.f", 4)
    assert comparison.apply(text) == text.replace("<", "<=")
    assert statement.apply(text) == "class C:\n    def f(self):\n        pass\n"
    assert [line[0] for line in statement.diff().splitlines()[1:]] == ["-", "-", "-", "+"]


@pytest.mark.parametrize(("line", "lines"), [(1, [1]), (2, [2, 3]), (3, [2, 3]), (5, [4, 5])])
def test_statement__around_a_line(line: int, lines: list[int]) -> None:
    text = "def f(a):\n    if (a\n        and b):\n        g(\n            1)\n"
    assert list(python_trial.statement(text, line)) == lines


@pytest.mark.parametrize(
    ("context", "test"),
    [
        ("tests/a.py::test_b[c|d]|run", "tests/a.py::test_b[c|d]"),
        ("tests/a.py::test_b (setup)", "tests/a.py::test_b"),
        ("tests/virtual copy 7", "tests/virtual copy 7"),
    ],
)
def test_test_of__a_context(context: str, test: str) -> None:
    assert python_trial.test_of(context) == test


def test_within__a_budget() -> None:
    seconds = {"a": 3.0, "b": 4.0, "c": 2.0}
    assert python_trial.within(5, seconds, seconds) == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("#define N (1 + 2)\nstatic const int table[] = {\n  1 + 2,\n};\nint f(int a);\n", set()),
        ("void f(void) {\n  mrc_assert(a < b &&\n             b < c);\n  g(1);\n}\n", {4}),
    ],
)
def test_mutants__leave_alone_what_is_no_body_and_assertions(text: str, lines: set[int]) -> None:
    assert {mutant.line for mutant in mutants.of_c("csrc/core/f.c", text)} == lines


def test_mutant__applies_to_one_line_and_keeps_the_number_of_lines() -> None:
    text = "void f(void) {\n  g();\n  g();\n}\n"
    first, second = mutants.of_c("csrc/core/f.c", text)
    assert first.rank(1) == first.rank(1) != first.rank(2)
    assert first.apply(text) == "void f(void) {\n  ;\n  g();\n}\n"
    assert second.apply(text) == "void f(void) {\n  g();\n  ;\n}\n"


def test_id__is_the_same_after_a_move_and_another_for_each_equal_line() -> None:
    text = "void f(void) {\n  g();\n  g();\n}\n"
    names = [mutant.id for mutant in mutants.of_c("csrc/core/f.c", text)]
    moved = mutants.of_c("csrc/core/f.c", f"\nvoid other(void) {{\n  ;\n}}\n\n{text}")
    assert len(set(names)) == 2
    assert [mutant.id for mutant in moved] == names
    text = "def f():\n    g()\n    g()\n\ndef f():\n    g()\n"
    assert len({mutant.id for mutant in mutants.of_python("mrc/f.py", text)}) == 3


@pytest.mark.parametrize("name", ["accepted.toml", "conform.toml"])
def test_accepted__each_is_a_change_of_a_line_that_is_there(name: str) -> None:
    accepted = trial.accepted(ROOT, name)
    found = {".c": mutants.of_c, ".h": mutants.of_c, ".py": mutants.of_python}
    possible = {
        (mutant.file, mutant.function, mutant.before.strip(), mutant.after.strip())
        for file in {entry[0] for entry in accepted}
        for mutant in found[Path(file).suffix](file, (ROOT / file).read_text())
    }
    assert set(accepted) - possible == set()
    assert all(len(why) > 20 for why in accepted.values())


def test_conform__each_rule_excludes_a_change() -> None:
    language = tool("maintainers/mutate").LANGUAGES["conform"]
    paths = [path for name in language.folders for path in (ROOT / name, *(ROOT / name).rglob("*"))]
    every = [
        mutant
        for path in paths
        if path.suffix in language.suffixes
        for mutant in mutants.of_c(str(path.relative_to(ROOT)), path.read_text())
    ]
    for rule in c_trial.rules():
        assert any(c_trial.is_excluded(mutant, rule) for mutant in every), rule


def test_to_link__a_header_of_programs_and_of_the_pair() -> None:
    sources = ["csrc/core/send.c", "tests/pair/pair.c", "tests/c/test_send.c", "csrc/verbs/rc.c"]
    assert c_trial.to_link(sources) == (["pair", "rc", "core"], ["tests/c/test_send.c"])


def test_same_code__in_every_tree(tmp_path: Path) -> None:
    """Assertions contain the path of their file, which differs from tree to tree."""
    text = "const char *f(void) {\n  (void)1;\n  return __FILE__;\n}\n"
    base = tmp_path / "base"
    for path in ("tests/cbuild.py", "mrc/_ffi_build.py"):
        (base / path).parent.mkdir(parents=True)
        shutil.copy2(ROOT / path, base / path)
    built = c_trial.Build(base, Path(sys.executable))
    for tree in (tmp_path / "job-0", tmp_path / "job-1"):
        tree.mkdir()
        (tree / "f.c").write_text(text.replace("(void)1", ""))
        assert built.same_code(tree, "f.c", text, tmp_path)
        (tree / "f.c").write_text(text.replace("__FILE__", "0"))
        assert not built.same_code(tree, "f.c", text, tmp_path)


class SecondIsFirst:
    """A bench where the second change ends before the first one."""

    def __init__(self, candidates: list[mutants.Mutant], statuses: list[str]) -> None:
        self.statuses = {
            mutant.id: status for mutant, status in zip(candidates, statuses, strict=True)
        }
        self.first, self.second = candidates[:2]
        self.second_ended = threading.Event()

    def attempt(self, mutant: mutants.Mutant) -> trial.Outcome:
        if mutant == self.first:
            assert self.second_ended.wait(PATIENCE)
        if mutant == self.second:
            self.second_ended.set()
        return trial.Outcome(self.statuses[mutant.id], by="tests/c/test_f.c test_f")

    def kill(self) -> None:
        raise AssertionError("no run may be stopped")


def test_run__gives_the_first_that_tell_something_in_the_order_of_the_seed(tmp_path: Path) -> None:
    """Even if others end first. A second run, with all results from the start, gives the same."""
    mutate = tool("maintainers/mutate")
    text = "void f(void) {\n" + "  g();\n" * 6 + "}\n"
    candidates = mutants.of_c("csrc/core/f.c", text)
    statuses = ["survived", "noticed", "equivalent", "noticed", "noticed", "noticed"]
    args = argparse.Namespace(count=3, jobs=2)
    wanted = [candidates[i].id for i in (0, 1, 3)]
    for _ in range(2):
        session = mutate.Session(tmp_path / "results.jsonl")
        session.load()
        run = mutate.Run(SecondIsFirst(candidates, statuses), session, args)
        assert [record["id"] for record in run.go(candidates)] == wanted
