# SPDX-License-Identifier: Apache-2.0
"""The rules of the source text that a program can hold: sizes, layers, words, layout.

Every test collects all offenders before it fails, as `path:line: what`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {
    "mrc", "csrc", "tests", "bench", "tools",
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "setup.py",
}  # fmt: skip

MAX_COLUMNS = 100
MAX_C_FUNCTION = 70
MAX_C_FILE = 600
MAX_PYTHON_FUNCTION = 50
MAX_PYTHON_FILE = 500
MAX_CDEF_FUNCTIONS = 40

# What the engine may include: nothing that knows a clock, a thread, a socket or a file.
CORE_HEADERS = {
    "errno.h", "limits.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h",
}  # fmt: skip
CORE_HEADERS_OF = {
    "base.c": {"stdio.h"},  # the assertion that ends the process says where
    "icrc.c": {"isa-l/crc.h", "zlib.h"},
}
CORE_FORBIDDEN_CALLS = ("rand", "random", "time", "clock_gettime", "getenv", "printf", "alloca")

# The layers of each folder of csrc, bottom to top. A module, which is a header and its source,
# includes modules of lower layers and of its own, in no circle.
LAYERS: dict[str, list[str]] = {
    "core": [
        "base bitmap dscp keymap list port prng psn secret timer",
        "drops icrc wire",
        "txwin rxwin order ev probation rtt share cc cc_delay cc_nscc cc_algorithm",
        "services arena counters cq events mr probes ready trace",
        "requester responder reverse plane",
        "peer qp",
        "burst health peer_share spray windows",
        "timeout detect reinject suspension loss",
        "requester_tx requester_rx responder_rx responder_tx sack acks probe reverse_tx",
        "endpoint answer ev_probe port_status peer_ports",
        "schedule commit",
        "engine verbs query",
    ],
}

# Glossary: one word per thing. Only words that cannot mean anything else are listed; a pattern
# holds inside csrc/ and mrc/ unless the file is named as an exception.
SYNONYMS: list[tuple[str, str, tuple[str, ...]]] = [
    (r"\b(packet|pkt)_?ids?\b|\bseq_?(no|num)s?\b", "psn", ()),
    (r"\bpath_?(id|table)s?\b", "ev, ev_profile", ()),
    (r"\bspines?\b", "t1", ()),
    (r"\brails?\b", "plane", ()),
    (r"\bstrip(e|es|ed|ing)\b|load.?balanc", "spray", ()),
    (r"\bc_?sid\b", "usid", ("netlink",)),
    (r"hand_?shake", "OOB exchange", ()),
    (r"\bback_?ends?\b", "driver", ()),
]


@cache
def sources() -> tuple[Path, ...]:
    """Every file of the project that git tracks or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked source archive
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return tuple(sorted(path for path in found if path.parts[0] in TOP_LEVEL))
    return tuple(sorted(Path(name) for name in set(listed.split("\0")) if (ROOT / name).is_file()))


@cache
def text(path: Path) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def lines(path: Path) -> list[str]:
    return text(path).splitlines()


def is_program(path: Path) -> bool:
    return not path.suffix and text(path).startswith("#!")


def is_python(path: Path) -> bool:
    return path.suffix == ".py" or (is_program(path) and "python" in lines(path)[0])


def is_c(path: Path) -> bool:
    return path.suffix in {".c", ".h", ".def"}


def is_code(path: Path) -> bool:
    configuration = path.name in {"pyproject.toml", ".clang-format", ".gitignore"}
    return is_python(path) or is_c(path) or is_program(path) or configuration


def under(*folders: str) -> Iterator[Path]:
    for path in sources():
        if any(path.is_relative_to(folder) for folder in folders):
            yield path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


def python_files(*folders: str) -> Iterator[Path]:
    return (path for path in (under(*folders) if folders else sources()) if is_python(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a Python file imports, wherever it does so."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def importers(module: str, *folders: str) -> dict[str, str]:
    return {
        str(path): f"{path}:{line}: imports {name}"
        for path in python_files(*folders)
        for line, name in imports(path)
        if name == module or name.startswith(f"{module}.")
    }


def grep(pattern: str, paths: Iterator[Path], flags: int = 0) -> list[str]:
    regex = re.compile(pattern, flags)
    return [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(lines(path), 1)
        if regex.search(line)
    ]


def report(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def code_without_comments(path: Path) -> str:
    """C text whose comments became blanks, line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text(path), flags=re.DOTALL)


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


def test_imports__one_importer_each() -> None:
    allowed = {
        "cffi": {"mrc/_ffi_build.py"},  # at build time only
        "_cffi_backend": set(),
        "mrc._core": {"mrc/_native.py"},
        "mrc._sim": {"mrc/sim/native.py"},
        "mrc._emu": {"mrc/testbed/emulator.py"},
        "pyroute2": {f"mrc/netlink/{name}.py" for name in ("client", "qdiscs", "routes", "tunsrc")},
        "scapy": set(),
    }  # fmt: skip
    report([
        line
        for module, names in allowed.items()
        for path, line in importers(module, "mrc").items()
        if path not in names
    ])  # fmt: skip


def test_package_init__holds_no_code() -> None:
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    report([
        f"{path}:{node.lineno}: {type(node).__name__} in __init__"
        for path in python_files("mrc")
        if path.name == "__init__.py"
        for node in tree(path).body
        if not isinstance(node, plain)
    ])  # fmt: skip


def test_print__only_in_the_cli() -> None:
    report([
        f"{path}:{node.lineno}: print() outside the CLI"
        for path in python_files("mrc")
        if not path.is_relative_to("mrc/cli")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ])  # fmt: skip


def test_core__includes_nothing_of_the_world() -> None:
    offenders = []
    for path in filter(is_c, under("csrc/core", "csrc/mrc.h")):
        allowed = CORE_HEADERS | CORE_HEADERS_OF.get(path.name, set())
        for number, line in enumerate(lines(path), 1):
            header = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
            if header and header[1] not in allowed:
                offenders.append(f"{path}:{number}: includes <{header[1]}>")
            header = re.match(r'\s*#\s*include\s+"(io|sim)/', line)
            if header:
                offenders.append(f"{path}:{number}: includes upwards: {line.strip()}")
    report(offenders)


def modules(folder: str) -> dict[str, list[Path]]:
    """The headers and sources of each module in a folder of csrc."""
    found: dict[str, list[Path]] = {}
    for path in under(f"csrc/{folder}"):
        if path.suffix in {".c", ".h"}:
            found.setdefault(path.stem, []).append(path)
    return found


def included(folder: str) -> Iterator[tuple[str, str, str]]:
    """The place, the module and the module of the same folder that it includes there."""
    own = modules(folder)
    for module, paths in own.items():
        for path in paths:
            for number, line in enumerate(lines(path), 1):
                header = re.match(rf'#include "(?:{folder}/)?(\w+)\.h"', line)
                if header and header[1] in own and header[1] != module:
                    yield f"{path}:{number}", module, header[1]


def in_circles(arrows: set[tuple[str, str]]) -> set[str]:
    """What is left of the arrows without those at whose end or beginning no other goes on."""
    left = set(arrows)
    while ends := {
        arrow
        for arrow in left
        if arrow[1] not in {start for start, _ in left} or arrow[0] not in {end for _, end in left}
    }:
        left -= ends
    return {module for arrow in left for module in arrow}


@pytest.mark.parametrize("folder", LAYERS)
def test_layers__hold_every_module(folder: str) -> None:
    table = " ".join(LAYERS[folder]).split()
    assert sorted(table) == sorted(modules(folder))


@pytest.mark.parametrize("folder", LAYERS)
def test_layers__are_included_downwards(folder: str) -> None:
    level = {module: i for i, layer in enumerate(LAYERS[folder]) for module in layer.split()}
    found = list(included(folder))
    report([
        f"{place}: {module} includes {other}, which is above it"
        for place, module, other in found
        if level[module] < level[other]
    ])  # fmt: skip
    circles = in_circles({(module, other) for _, module, other in found})
    assert not circles, f"include each other in a circle: {sorted(circles)}"


def test_layers__are_drawn_in_architecture() -> None:
    drawing = text(Path("ARCHITECTURE.md")).split("includes point down only:\n\n```\n")[1]
    rows = [line for line in drawing.split("\n```")[0].splitlines() if not line.startswith(" ")]
    drawn = [re.split(r"\s{2,}", row)[0].split() for row in reversed(rows)]
    assert [sorted(row) for row in drawn] == [sorted(layer.split()) for layer in LAYERS["core"]]


def c_declarations(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line and name of every function that a file declares or (True) defines for others."""
    code = re.sub(r"^#.*(\\\n.*)*", "", code_without_comments(path), flags=re.MULTILINE)
    depth, start = 0, 0
    for place, char in enumerate(code):
        if depth == 0 and char in ";{":
            head = re.search(r"^(?!\s*static\b)[\w\s*]+[\s*](mrc_\w+)\([^{;]*$", code[start:place])
            if head:
                line = code.count("\n", 0, start + head.start(1)) + 1
                yield line, head[1], char == "{"
        depth += (char == "{") - (char == "}")
        if depth == 0 and char in ";}":
            start = place + 1


@pytest.mark.parametrize("folder", LAYERS)
def test_functions__are_defined_beside_their_header(folder: str) -> None:
    """No module declares a function of another, which would hide an include upwards."""
    offenders = []
    for paths in modules(folder).values():
        places = {
            (path.suffix, defined): {name: f"{path}:{line}" for line, name, is_defined in found
                                     if is_defined == defined}
            for path in paths
            for found in [list(c_declarations(path))]
            for defined in (False, True)
        }  # fmt: skip
        defined = places.get((".c", True), {})
        for name, place in places.get((".h", False), {}).items():
            if name not in defined:
                offenders.append(f"{place}: {name} is defined elsewhere")
        for name, place in places.get((".c", False), {}).items():
            if name not in defined:
                offenders.append(f"{place}: {name} is a function of another module")
    report(offenders)


def test_public_functions__are_those_of_the_top_layer() -> None:
    """csrc/mrc.h has no source of its own: the top layer of the core and csrc/io implement it."""
    tops = [f"csrc/core/{module}.c" for module in LAYERS["core"][-1].split()]
    defined = {
        name
        for path in (*map(Path, tops), *under("csrc/io"))
        if path.suffix == ".c"
        for _, name, is_defined in c_declarations(path)
        if is_defined
    }
    declared = {name for _, name, _ in c_declarations(Path("csrc/mrc.h"))}
    assert declared and declared <= defined, declared - defined


def test_core__calls_nothing_of_the_world() -> None:
    calls = re.compile(rf"(?<![\w.>])({'|'.join(CORE_FORBIDDEN_CALLS)})\s*\(")
    offenders = []
    for path in filter(is_c, under("csrc/core")):
        for number, line in enumerate(code_without_comments(path).splitlines(), 1):
            if path.suffix != ".def" and calls.search(line):
                offenders.append(f"{path}:{number}: {line.strip()}")
    report(offenders)


def test_atomics__only_where_two_contexts_meet() -> None:
    """Rings between two threads or with the kernel, and the table that a signal handler reads."""
    meet = {"spsc", "ring", "sigbus"}
    elsewhere = (path for path in filter(is_c, under("csrc")) if path.stem not in meet)
    report(grep(r"\b_Atomic\b|__atomic_|__sync_|\batomic_|stdatomic|\bvolatile\b", elsewhere))


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


def test_cdef__stays_narrow() -> None:
    header = code_without_comments(Path("csrc/mrc.h"))
    functions = re.findall(r"\b(mrc_\w+)\(", header)
    assert len(functions) == len(set(functions))
    assert 0 < len(functions) < MAX_CDEF_FUNCTIONS


def test_def_lists__every_name_is_used() -> None:
    """By its constant, such as MRC_DROP_SHORT, or by its member where the list makes a struct."""
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
            offenders.append(f"{path}: executable without a #! line, or the other way round")
    report(offenders)
