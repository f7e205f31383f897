# SPDX-License-Identifier: Apache-2.0
"""tools/setup where something is missing, and when it builds again. A script stands in place of
Python: it compiles nothing, so a set-up takes a moment.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import terminal
from project_text import ROOT

# What would take time is noted instead. A compiler prints $PRINTS, and waits for the file $WAITS.
PYTHON = """\
#!/bin/bash
case "$*" in
  *ensurepip* | *Python.h*) [ -z "$LACKS" ] || exit 1 ;;
esac
case "$*" in
  -c* | -V) exec %s "$@" ;;
  "-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    echo "command = $0 -m venv $3" > "$3/pyvenv.cfg"
    ;;
  *"install -v"* | setup.py*)
    echo "compiled, MRC_WERROR=$MRC_WERROR" >> compilations
    echo "$PRINTS"
    while [ -n "$WAITS" ] && [ ! -e "$WAITS" ]; do sleep 0.01; done
    case "$PRINTS" in *": error: "*) exit 1 ;; esac
    mkdir -p mrc/lib
    touch mrc/{_core,_sim,_emu}.so mrc/lib/{libmrc.so.1,libmrc-cm.so.1,libmrc-fi.so}
    ;;
esac
"""
SERIAL = "lto-wrapper: warning: using serial compilation of 3 LTRANS jobs"  # without make
ODD = "csrc/core/a.c:1:2: {}: unused variable"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The part of a checkout that set-up reads, and a Python beside it."""
    here = tmp_path / "a checkout"
    (here / "tools").mkdir(parents=True)
    for name in ("tools/setup", "tools/packages", "tools/requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, here / name)
    for name in ("csrc/core", "mrc"):
        (here / name).mkdir(parents=True)
    for name in ("csrc/core/a.c", "mrc/_ffi_build.py", "setup.py"):
        (here / name).touch()
    write_program(tmp_path / "python3", PYTHON % shlex.quote(sys.executable))
    return here


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def bare_path(folder: Path, *absent: str) -> str:
    """A PATH with the programs of this machine except the absent ones."""
    programs = folder / "bin"
    programs.mkdir()
    for place in ("/usr/sbin", "/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if program.name not in absent and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    return str(programs)


def settings(checkout: Path, **changed: str) -> dict[str, str]:
    return {"MRC_NO_APT": "1", "PYTHON": str(checkout.parent / "python3"), "MRC_WERROR": "",
            "LACKS": "", "PRINTS": "", "WAITS": ""} | changed  # fmt: skip


def set_up(checkout: Path, *before: str, **environ: str) -> tuple[int, str]:
    """The exit code of tools/setup and what it prints."""
    done = subprocess.run(
        [*before, checkout / "tools" / "setup"], env=os.environ | settings(checkout, **environ),
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


def compilations(checkout: Path) -> list[str]:
    file = checkout / "compilations"
    return [each.rpartition("=")[2] for each in file.read_text().splitlines()]


def test_setup__a_warning_about_the_machine_is_no_fault_of_the_build(checkout: Path) -> None:
    code, said = set_up(checkout, MRC_WERROR="1", PRINTS=SERIAL)
    assert code == 0, said
    assert set_up(checkout, MRC_WERROR="1", PRINTS=SERIAL)[0] == 0
    assert set_up(checkout, PRINTS=SERIAL)[0] == 0
    assert compilations(checkout) == ["1"]


def test_setup__without_werror_a_warning_about_the_machine_suffices_too(checkout: Path) -> None:
    set_up(checkout, PRINTS=SERIAL)
    set_up(checkout, MRC_WERROR="1")
    assert compilations(checkout) == [""]


def test_setup__a_warning_of_the_compiler_fails_once_warnings_are_errors(checkout: Path) -> None:
    """Not before, and then it says why. A build that passes is the last one."""
    warning, error = ODD.format("warning"), ODD.format("error")
    for _ in range(2):
        assert set_up(checkout, PRINTS=warning)[0] == 0
    assert compilations(checkout) == [""]
    code, said = set_up(checkout, MRC_WERROR="1", PRINTS=error)
    assert code == 1 and error in said and "the engine does not compile" in said
    for _ in range(2):
        assert set_up(checkout, MRC_WERROR="1")[0] == 0
    assert compilations(checkout) == ["", "1", "1"]


def test_setup__names_all_packages_of_the_build_in_one_line(checkout: Path) -> None:
    """The others are optional, and said to be. A header is not missing because gcc is."""
    path = bare_path(checkout.parent, "gcc", "socat")
    code, said = set_up(checkout, PATH=path, LACKS="1")
    assert code == 1
    (remedy,) = [line for line in said.splitlines() if line.startswith("set-up: remedy: ")]
    assert remedy == "set-up: remedy: sudo apt-get install gcc python3-dev python3-venv"
    (optional,) = [line for line in said.splitlines() if "optional" in line]
    assert "socat" in optional.split() and "gcc" not in optional.split()
    if Path("/usr/include/isa-l/crc.h").exists():
        assert "libisal-dev" not in optional.split()


def test_setup__as_root_it_installs_python(checkout: Path) -> None:
    """`apt-get` is a script. This machine's Python is hidden in a mount namespace."""
    real, system = checkout.parent / "python3", Path("/usr/bin/python3").resolve()
    copy = shutil.copy(Path(sys.executable).resolve(), checkout.parent / "interpreter")
    write_program(
        real, PYTHON % shlex.quote(str(copy))
    )  # these tests may run on the one that is hidden
    names = [program.name for program in Path("/usr/bin").glob("python3*")]
    path = bare_path(checkout.parent, "apt-get", *names)
    arrives = f'case "$*" in *" python3 "*) mv {real} {path}/python3 ;; esac'
    write_program(Path(path, "apt-get"), f"#!/bin/sh\n{arrives}\n")
    hidden = f'{{ [ ! -e {system} ] || mount --bind /dev/null {system}; }} && exec "$@"'
    enter = ("unshare", "--map-root-user", "--mount", "sh", "-c", hidden, "sh")
    if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a user namespace")
    code, said = set_up(checkout, *enter, PATH=path, PYTHON="", MRC_NO_APT="", LACKS="")
    assert code == 0, said
    (apt,) = [line for line in said.splitlines() if line.startswith("set-up: apt: ")]
    assert "python3" in apt.split()


def test_setup__shows_whole_characters_of_a_long_line(checkout: Path, tmp_path: Path) -> None:
    """In a locale that knows only bytes, too."""
    waits = tmp_path / "shown"
    environ = settings(checkout, LC_ALL="C", PRINTS="c" + "é" * 80, WAITS=str(waits))
    with terminal() as shown, shown.running(checkout / "tools" / "setup", **environ) as process:
        shown.until(" s: cé")
        waits.touch()
        after = shown.until("\r\x1b[K")
        assert process.wait() == 0
    assert set(after) == {"é"}
