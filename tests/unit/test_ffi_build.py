# SPDX-License-Identifier: Apache-2.0
"""The build description: the declarations from mrc.h, and the compiled and linked sources."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mrc import _ffi_build
from mrc._ffi_build import (
    CORE,
    SIM,
    compile_flags,
    crc_library,
    cut_cdef,
    has_header,
    headers,
    links,
    sources,
)
from mrc.engine.native import lib

ROOT = Path(__file__).resolve().parent.parent.parent


def test_cut_cdef__takes_what_is_between_the_markers() -> None:
    header = "before /* cdef begin */ int f(void); /* cdef end */ after"
    assert cut_cdef(header).strip() == "int f(void);"


@pytest.mark.parametrize(
    "header",
    ["no markers", "/* cdef begin */ only", "/* cdef begin *//* cdef end *//* cdef end */"],
)
def test_cut_cdef__missing_or_double_markers(header: str) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        cut_cdef(header)


def test_cut_cdef__holds_no_preprocessor_line_but_plain_constants() -> None:
    cdef = cut_cdef((ROOT / "csrc" / "mrc.h").read_text())
    directives = [line for line in cdef.splitlines() if line.startswith("#")]
    assert directives
    assert all(line.split()[0] == "#define" and line.split()[2].isdigit() for line in directives)


def test_sources__are_the_engine_and_the_socket_driver_in_a_fixed_order(tmp_path: Path) -> None:
    for name in (
        "core/b.c",
        "core/room/e.c",
        "core/room/e.h",
        "core/a.c",
        "io/c.c",
        "sim/d.c",
        "sim/d.h",
        "core/a.h",
        "core/x.def",
        "mrc.h",
    ):
        path = tmp_path / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    core = ["csrc/core/a.c", "csrc/core/b.c", "csrc/core/room/e.c"]
    assert sources(tmp_path, CORE) == [*core, "csrc/io/c.c"]
    found = ["csrc/mrc.h", "csrc/core/a.h", "csrc/core/room/e.h", "csrc/core/x.def"]
    assert headers(tmp_path, CORE) == found


@pytest.mark.parametrize("folders", [CORE, SIM])
def test_sources__are_there(folders: tuple[str, ...]) -> None:
    found = sources(ROOT, folders)
    there = {each for each in folders if (ROOT / "csrc" / each).is_dir()}  # of this tree
    assert {name.split("/")[1] for name in found} == there
    assert [name for name in (*found, *headers(ROOT, folders)) if not (ROOT / name).exists()] == []


def test_links__a_library_that_does_not_exist() -> None:
    assert not links("int main(void) { return 0; }\n", "-lmrc-does-not-exist")


def test_links__no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "mrc-no-such-compiler")
    assert not links("int main(void) { return 0; }\n")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"-lisal", "-lz"}, ([("MRC_HAVE_ISAL", "1")], ["-lisal"])),
        ({"-lz"}, ([], ["-lz"])),
        (set(), ([], ["-l:libz.so.1"])),
    ],
)
def test_crc_library__prefers_isal_then_zlib(
    monkeypatch: pytest.MonkeyPatch,
    found: set[str],
    expected: tuple[list[tuple[str, str]], list[str]],
) -> None:
    monkeypatch.setattr(_ffi_build, "links", lambda code, library: library in found)
    assert crc_library() == expected


def test_compile_flags__warnings_are_errors_on_request_only() -> None:
    assert "-Werror" not in compile_flags({})
    assert "-Werror" not in compile_flags({"MRC_WERROR": "0"})
    assert "-Werror" in compile_flags({"MRC_WERROR": "1"})


def stack_flags(library: bytes) -> list[int]:
    """The flags of the program headers PT_GNU_STACK of a 64-bit ELF file."""
    (first,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    found = [struct.unpack_from("<II", library, first + i * size) for i in range(count)]
    return [flags for kind, flags in found if kind == 0x6474E551]


def test_compiled__needs_no_executable_stack() -> None:
    """glibc 2.41 loads no library that needs one; a library without the header does."""
    made = [*ROOT.glob("mrc/*.so"), *ROOT.glob("mrc/lib/*")]
    read = {path.name: path.read_bytes() for path in made}
    found = {
        name: stack_flags(content)
        for name, content in read.items()
        if content.startswith(b"\x7fELF\2")
    }
    assert len(found) >= 3  # the modules
    assert set(map(tuple, found.values())) == {(6,)}, found  # readable and writable


def test_has_header__also_one_that_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mrc-broken.h").write_text("#error broken\n")
    assert has_header("stdlib.h") and not has_header("mrc-broken.h")
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert has_header("mrc-broken.h")


def test_builder__the_compiled_module_is_of_this_header() -> None:
    """A stale build would make every other test meaningless."""
    cdef = cut_cdef((ROOT / "csrc" / "mrc.h").read_text())
    constants = [line.split()[1:3] for line in cdef.splitlines() if line.startswith("#define")]
    assert {name: getattr(lib, name) for name, _ in constants} == {
        name: int(value) for name, value in constants
    }
