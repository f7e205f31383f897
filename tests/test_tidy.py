# SPDX-License-Identifier: Apache-2.0
"""The rules of the source text that a program can check: sizes, words, layout.

Every test collects all offenders before it fails, as `path:line: what`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from project_text import (
    ROOT,
    TOP_LEVEL,
    code_without_comments,
    grep,
    is_c,
    is_code,
    lines,
    python_files,
    report,
    sources,
    text,
    tree,
    under,
)

MAX_COLUMNS = 100
MAX_C_FUNCTION = 70
MAX_C_FILE = 900
MAX_PYTHON_FUNCTION = 70
MAX_PYTHON_FILE = 900

OCDAI = ("ocdai",)  # they read its words
# Glossary: one word per thing. Only words with a single meaning are listed; a pattern applies to
# csrc/ and mrc/, except to the files named as exceptions.
SYNONYMS: list[tuple[str, str, tuple[str, ...]]] = [
    (r"\b(packet|pkt)_?ids?\b|\bseq_?(no|num)s?\b", "psn", ()),
    (r"\bpath_?(id|table)s?\b", "ev, ev_profile", ()),
    (r"\bspines?\b", "t1", OCDAI),
    (r"\brails?\b", "plane", OCDAI),
    (r"\bstrip(e|es|ed|ing)\b|load.?balanc", "spray", ()),
    (r"\bc_?sid\b", "usid", ("netlink", "export")),
    (r"hand_?shake", "OOB exchange", ("tls",)),
    (r"\bback_?ends?\b", "driver", ("entry",)),
]


def c_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    """First line, length and head of every function definition, as clang-format lays them out."""
    start = None
    previous_ends = 0
    content = lines(path)
    for number, line in enumerate(content, 1):
        if start is None and re.match(r"[^\s#/}].*\{$|\s+.*\)\s*\{$", line):
            head = " ".join(content[previous_ends:number])
            if ")" in line and not re.match(r"\s*(typedef|struct|enum|union)[^(]*\{", head):
                first = number
                while first > 1 and content[first - 1].startswith(" "):
                    first -= 1
                start = first
        if line.startswith("}"):
            if start is not None:
                yield start, number - start + 1, content[start - 1]
            start = None
        if line.startswith("}") or not line.strip() or line.endswith((";", "*/")):
            previous_ends = number


def test_top_level__exactly_as_laid_out() -> None:
    found = {path.parts[0] for path in sources()}
    report([f"{name}: not part of the layout" for name in sorted(found - TOP_LEVEL)
            if not name.startswith(".")])  # fmt: skip
    report([f"{name}: missing" for name in sorted(TOP_LEVEL - found)])


def test_spdx__is_the_first_line() -> None:
    offenders = []
    for path in filter(is_code, sources()):
        head = [line for line in lines(path)[:2] if not line.startswith("#!")]
        if head and "SPDX-License-Identifier: Apache-2.0" not in head[0]:
            offenders.append(f"{path}:1: no SPDX line")
    report(offenders)


def test_lines__fit_and_end_cleanly() -> None:
    offenders = []
    for path in sources():
        if not (is_code(path) or path.suffix == ".md"):
            continue
        for number, line in enumerate(lines(path), 1):
            wide = path.suffix == ".md" and (line.startswith("|") or "http" in line)
            if len(line) > MAX_COLUMNS and not wide:
                offenders.append(f"{path}:{number}: {len(line)} columns")
            if line != line.rstrip() or "\t" in line:
                offenders.append(f"{path}:{number}: trailing blank or tab")
        if text(path) and not text(path).endswith("\n"):
            offenders.append(f"{path}: no line break at the end")
    report(offenders)


def test_files__stay_small() -> None:
    offenders = []
    for path in filter(is_code, sources()):
        limit = MAX_C_FILE if is_c(path) else MAX_PYTHON_FILE
        if len(lines(path)) > limit:
            offenders.append(f"{path}: {len(lines(path))} lines, at most {limit}")
    report(offenders)


def test_c_functions__stay_small() -> None:
    report([
        f"{path}:{line}: {length} lines, at most {MAX_C_FUNCTION}: {head}"
        for path in filter(is_c, sources())
        for line, length, head in c_functions(path)
        if length > MAX_C_FUNCTION
    ])  # fmt: skip


def test_python_functions__stay_small() -> None:
    offenders = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_PYTHON_FUNCTION:
                    offenders.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    report(offenders)


def test_leftovers__none() -> None:
    words = "|".join(["FIX" + "ME", "TO" + "DO", "XX" + "X", "HA" + "CK"])
    pattern = rf"\b({words})\b|^\s*#\s*if 0\b|\bbreakpoint\(\)"
    report(grep(pattern, filter(is_code, sources())))


def test_words__are_those_of_the_glossary() -> None:
    offenders = []
    for pattern, word, exceptions in SYNONYMS:
        paths = (
            path
            for path in filter(is_code, under("csrc", "mrc"))
            if not any(name in path.parts or name == path.stem for name in exceptions)
        )
        offenders += [f"{line} (say {word})" for line in grep(pattern, paths, re.IGNORECASE)]
    report(offenders)


def test_def_lists__every_name_is_used() -> None:
    """By its constant, such as MRC_DROP_SHORT, or by its member if the list makes a struct."""
    used = "\n".join(code_without_comments(path) for path in under("csrc") if path.suffix == ".c")
    offenders = []
    for path in (path for path in under("csrc") if path.suffix == ".def"):
        for number, line in enumerate(lines(path), 1):
            entry = re.match(r"X\((\w+)", line)
            if entry and not re.search(rf"\b(MRC_[A-Z_]+_)?{entry[1]}\b", used):
                offenders.append(f"{path}:{number}: {entry[1]} is never used")
    report(offenders)


def test_programs__are_executable_and_only_they() -> None:
    offenders = []
    for path in sources():
        executable = os.access(ROOT / path, os.X_OK)
        if executable != text(path).startswith("#!"):
            offenders.append(f"{path}: executable bit and #! line do not match")
    report(offenders)


def test_numbers__have_no_exponents() -> None:
    """People read "1e+08 us" as an error: mrc/units.py writes numbers."""
    offenders = [
        f"{path}:{number}: {line.strip()}"
        for path in python_files("mrc")
        if path != Path("mrc/units.py")
        for number, line in enumerate(lines(path), 1)
        if re.search(r":(\.\d)?g\}", line)
    ]
    report(offenders)


def test_time_limits__hold_in_cancelled_tasks() -> None:
    """As those of mrc.tasks do; those of asyncio do not on Python 3.11.2, which Debian 12 has."""
    offenders = grep(r"\basyncio\.timeout\(", python_files("mrc"))
    report([line for line in offenders if not line.startswith("mrc/tasks.py")])


def test_tests__pin_no_words_of_argparse() -> None:
    """They differ between versions of Python."""
    words = "|".join(["invalid " + "choice", "are " + "required:", "choose " + "from"])
    report(grep(words, python_files("tests")))


def test_tests__wait_with_patience() -> None:
    """A busy machine misses a time of less than a minute."""
    short = r"(?!0[,)])[1-5]?\d(\.\d+)?[,)]"
    waits = rf"(\.(wait|result|join)|\basyncio\.timeout)\({short}"
    limited = rf"\b(communicate|run)\(.*\btimeout={short}"
    report(grep(f"{waits}|{limited}", python_files("tests")))
