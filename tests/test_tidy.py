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
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

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

# The rooms of mrc/, from the ground floor up: modules at its top, and folders. An import, also one
# inside a function, leads to a room on a lower floor.
FLOORS = (
    {"_ffi_build", "enums", "limits", "typed", "units"},
    {"errors", "events"},
    {"fabric"},
    {"binding", "exchange", "linux", "sim"},
    {"config", "testbed"},
    {"datapath"},
    {"control"},
    {"aio"},
    {"doctor", "messaging", "observe"},
    {"transfer"},
    {"demo", "perf"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)

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


# The modules of each folder from the bottom up. A module is its .c and .h together; it includes
# modules of lower layers only, or of its own layer without a circle.
LAYERS: dict[str, list[list[str]]] = {
    "csrc/io": [
        ["cause", "lineage", "pause", "sigbus", "spsc"],
        ["guards", "recorder", "socket", "udp"],
        ["counters", "udp_receive", "udp_send"],
        ["datapath_state", "udp_open"],
        ["ports"],
        ["commands"],
        ["datapath"],
        ["ctx"],
    ],
    "csrc/sim": [
        ["address", "bytes", "frame", "gbn", "heap", "host_address", "link", "memory", "scenario"],
        ["agenda", "audit", "datagram", "flow", "queue", "tcp", "topology"],
        ["fabric_watch", "hop", "world"],
        ["record"],
        ["fabric"],
        ["fault", "host"],
        ["engines", "gbn_host", "tcp_host"],
        ["qps"],
        ["prove"],
        ["traffic"],
        ["sim_parts"],
        ["sim"],
        ["pair_fabric"],
        ["watch"],
        ["driver"],
        ["pair"],
        ["connect"],
    ],
    "csrc/emu": [["ethernet", "ring"], ["outbox"], ["emu"]],
}
# Folders that a folder may include, beside csrc itself.
BELOW = {"csrc/io": {"core"}, "csrc/sim": {"core"}, "csrc/emu": {"core", "sim"}}


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


@cache
def modules() -> dict[str, Path]:
    """Every module of mrc by its full name; a folder by that of its __init__."""
    found = {".".join(path.with_suffix("").parts): path for path in python_files("mrc")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each module of mrc that a file takes something from."""
    for line, name in imports(path):
        known = (name, name.rpartition(".")[0])
        if module := next((each for each in known if each in modules()), None):
            yield line, module


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


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
        "mrc._core": {"mrc/binding/native.py"},
        "mrc._sim": {"mrc/sim/native.py"},
        "mrc._emu": {"mrc/testbed/emulator.py"},
        "pyroute2": {
            f"mrc/linux/netlink/{name}.py" for name in ("client", "qdiscs", "routes", "tunsrc")
        },
        "scapy": set(),
    }  # fmt: skip
    report([
        line
        for module, names in allowed.items()
        for path, line in importers(module, "mrc").items()
        if path not in names
    ])  # fmt: skip


def test_rooms__are_those_of_the_table() -> None:
    named = [name for floor in FLOORS for name in sorted(floor)]
    assert sorted(named) == sorted({room(module) for module in modules()})


def test_rooms__are_drawn_where_they_are() -> None:
    """In the table of ARCHITECTURE.md, which leaves out the build and the start."""
    rows = re.findall(r"^\| (\d*) ?\| (`.*?`) \|", text(Path("ARCHITECTURE.md")), re.MULTILINE)
    drawn: dict[int, set[str]] = {}
    floor = 0
    for number, names in rows:
        floor = int(number or floor)
        found = re.findall(r"`(?:mrc/)?(\w+)(?:/|\.py)`", names)
        drawn.setdefault(floor, set()).update(found)
    left_out = {"_ffi_build", "__main__"}
    floors = {number: names - left_out for number, names in enumerate(FLOORS, 1)}
    assert drawn == {number: names for number, names in floors.items() if names}


def test_rooms__imports_lead_to_lower_floors() -> None:
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    report([
        f"{path}:{line}: {room(module)} imports {target}"
        for module, path in modules().items()
        for line, target in imported(path)
        if room(target) != room(module) and floor_of[room(target)] >= floor_of[room(module)]
    ])  # fmt: skip


def test_modules__import_by_full_names() -> None:
    report([
        f"{path}:{node.lineno}: a relative import"
        for path in python_files("mrc")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ])  # fmt: skip


def test_modules__no_circle() -> None:
    graph = {
        module: {target for _, target in imported(path)} - {module}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        report([" -> ".join(error.args[1])])


def test_package_init__holds_no_code() -> None:
    """That of mrc has what loads a public name when it is first used, and nothing else."""
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    report([
        f"{path}:{node.lineno}: {type(node).__name__} in __init__"
        for path in python_files("mrc")
        if path.name == "__init__.py"
        for node in tree(path).body
        if not isinstance(node, plain)
        and not (path == Path("mrc/__init__.py") and loads_lazily(node))
    ])  # fmt: skip


def loads_lazily(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "_TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def test_print__only_in_the_cli() -> None:
    report([
        f"{path}:{node.lineno}: print() outside the CLI"
        for path in python_files("mrc")
        if not path.is_relative_to("mrc/cli")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ])  # fmt: skip


def included(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, folder below csrc and module of everything of ours that a C file includes."""
    for number, line in enumerate(lines(path), 1):
        header = re.match(r'\s*#\s*include\s+"(?:(\w+)/)?(\w+)\.\w+"', line)
        if header:
            yield number, header[1] or path.parent.name, header[2]


def test_layers__includes_point_down() -> None:
    offenders = []
    for folder, layers in LAYERS.items():
        level = {module: index for index, layer in enumerate(layers) for module in layer}
        modules = {path.stem for path in under(folder) if path.suffix in {".c", ".h"}}
        offenders += [
            f"{folder}: {name}: a module without a layer" for name in modules - set(level)
        ]
        offenders += [f"{folder}: {name}: no such module" for name in set(level) - modules]
        same: dict[str, set[str]] = {module: set() for module in level}
        for path in filter(is_c, under(folder)):
            for number, where, module in included(path):
                if where == "csrc" or module == path.stem or module not in level:
                    continue
                if where != Path(folder).name:
                    continue
                if level[module] > level.get(path.stem, -1):
                    offenders.append(f"{path}:{number}: includes {module}, a layer above")
                elif level[module] == level[path.stem]:
                    same[path.stem].add(module)
        try:
            TopologicalSorter(same).prepare()
        except CycleError as error:
            offenders.append(f"{folder}: a circle: {' '.join(error.args[1])}")
    report(sorted(offenders))


def test_layers__folders_include_those_below() -> None:
    report([
        f"{path}:{number}: includes {where}/{module}"
        for folder, below in BELOW.items()
        for path in filter(is_c, under(folder))
        for number, where, module in included(path)
        if where not in {*below, path.parent.name, "csrc"} and module != "mrc"
    ])  # fmt: skip


def test_layers__a_function_is_defined_beside_its_declaration() -> None:
    """Declared in NAME.h, defined in NAME.c."""
    offenders = []
    for folder in LAYERS:
        declared: dict[str, str] = {}
        for path in (path for path in under(folder) if path.suffix == ".h"):
            for name in re.findall(
                r"\b(mrc_\w+)\([^{}]*?\)[\sA-Z_]*;", code_without_comments(path)
            ):
                declared[name] = path.stem
        for path in (path for path in under(folder) if path.suffix == ".c"):
            for name in re.findall(r"^\w[\w \*]*\b(mrc_\w+)\(", code_without_comments(path), re.M):
                if declared.get(name, path.stem) != path.stem:
                    offenders.append(f"{path}: {name} is declared in {declared[name]}.h")
    report(offenders)


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
