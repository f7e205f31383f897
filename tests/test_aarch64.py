# SPDX-License-Identifier: Apache-2.0
"""mrc on aarch64, in QEMU: C tests, fuzz targets on their corpus, the wheel, and random scenarios,
whose traces must be those of x86-64. tools/maintainers/aarch64 prepares the machine for them.

Programs that need no real sockets run with their system calls translated. The others run in a guest
whose kernel has pages of 16 KiB. There are no sanitizers: the translation has no room for their
shadow memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import aarch64
import cbuild
import pytest
from aarch64 import Ended, emulated, run_in_guest
from verbs.building import compiled

ROOT = cbuild.ROOT
pytestmark = [
    pytest.mark.skipif(bool(aarch64.lacks()), reason=aarch64.lacks()),
    pytest.mark.timeout(1800),
]

SWEEPS = [ROOT / "tests" / "sim" / f"sweep{kind}.c" for kind in ("", "_fabric", "_messages")]
FUZZ = ROOT / "tests" / "fuzz"
TARGETS = sorted(set(FUZZ.glob("fuzz_*.c")) - {FUZZ / "fuzz_canary.c"})
MUTATIONS = 50  # of each file
PROGRAMS = sorted((ROOT / "tests" / "c").glob("test_*.c"))
DRIVERS = [path for path in PROGRAMS if not {"io", "emu"}.isdisjoint(cbuild.parts([path]))]
GUEST_SECONDS = 1200
SCENARIOS = ROOT / "mrc" / "sim" / "scenarios"
PLATFORMS = ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux_2_17_aarch64")
# ISA-L comes from the wheel, and both ends of the example compute CRCs.
HELLO = """
import asyncio
from mrc.examples.hello import main
asyncio.run(main())
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libisal" in line})
"""
# Programs of tests/verbs and the last line of each. The others have limits that a guest exceeds.
VERBS = {
    "data": "done",
    "gather": "memory of nobody",
    "wrong": "closed device",
    "bad_luck": "leave",
}
AGENT = """
{mrc} agent --insecure --bind 127.0.0.1 -B lo --quiet &
until busybox grep -q mrc-agent /proc/net/unix; do busybox sleep 0.1; done
"""
LOADED = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1])[sys.argv[2]] is not None)"


def flavour() -> cbuild.Flavour:
    compiler, *options = aarch64.compiler()
    flags = ("-O2", *options)
    return cbuild.Flavour("aarch64", flags, compiler=compiler, archiver=aarch64.ARCHIVER)


def built(source: Path, *extra: Path) -> Path:
    try:
        return cbuild.program(source, flavour(), extra)
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)


def run(*command: str | Path, **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        text = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        pytest.fail(f"exit {done.returncode}\n{text}", pytrace=False)
    return done.stdout


def in_guest(path: Path) -> str:
    return f"/host{path}"


# ---- traces --------------------------------------------------------------------------------------


def check_traces(sweep: Path, first: int, count: int) -> None:
    seeds = (str(first), str(count), "-t")
    here = run(cbuild.program(sweep, cbuild.FAST), *seeds)
    assert here.count("\n") == count + 1
    assert run(*emulated(built(sweep), *seeds)) == here


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10000, 11000, 250))
@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)
def test_traces__of_a_thousand_seeds(sweep: Path, first: int) -> None:
    check_traces(sweep, first, 250)


# ---- C -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(set(PROGRAMS) - set(DRIVERS)), ids=lambda path: path.stem)
def test_c(source: Path) -> None:
    assert run(*emulated(built(source))).endswith(" passed, 0 failed\n")


@pytest.fixture(scope="module")
def drivers() -> dict[Path, Ended]:
    cbuild.build_ahead([(source, flavour()) for source in DRIVERS])
    programs = [in_guest(built(source)) for source in DRIVERS]
    ended = run_in_guest([[each] for each in programs], GUEST_SECONDS)
    assert len(ended) == len(programs), f"the guest ran only {len(ended)} of {len(programs)}"
    return dict(zip(DRIVERS, ended, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("source", DRIVERS, ids=lambda path: path.stem)
def test_c__on_a_kernel_with_larger_pages(source: Path, drivers: dict[Path, Ended]) -> None:
    ended = drivers[source]
    assert ended.returncode == 0, ended.output
    assert ended.output.endswith(" passed, 0 failed\n")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda path: path.stem)
def test_corpus(target: Path) -> None:
    seeds = sorted((FUZZ / "corpus" / target.stem.removeprefix("fuzz_")).iterdir())
    program = built(target, FUZZ / "replay.c")
    assert run(*emulated(program, str(MUTATIONS), *seeds)).startswith("replayed ")


# ---- the wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT / "tools" / "wheel", "--arch", "aarch64", "--output", folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and its requirements, as pip chooses them for aarch64."""
    folder = tmp_path_factory.mktemp("site")
    platforms = [word for each in PLATFORMS for word in ("--platform", each)]
    python = ("--python-version", "3.11", "--only-binary", ":all:")
    run(sys.executable, "-m", "pip", "install", "-q", *platforms, *python, "--target", folder,
        "--find-links", wheel.parent, "mrc-transport")  # fmt: skip
    return folder


@pytest.mark.slow
def test_wheel__tag_and_pages(wheel: Path, tmp_path: Path) -> None:
    """glibc 2.34 suffices, as on x86-64, and kernels with pages of 64 KiB can map its files."""
    assert "-cp311-abi3-manylinux_2_34_aarch64" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # libmrc.so and lib_mrc.so are linker scripts.
    libraries = [path for path in tmp_path.rglob("*.so*") if path.read_bytes()[:4] == b"\x7fELF"]
    assert len(libraries) == 7
    for library in libraries:
        text = run("readelf", "-hlW", library)
        assert "AArch64" in text
        assert all(int(each.split()[-1], 16) >= 65536 for each in segments(text))


def segments(text: str) -> list[str]:
    found = [line for line in text.splitlines() if line.split()[:1] == ["LOAD"]]
    assert found
    return found


@pytest.mark.slow
def test_wheel__simulates_the_same(site: Path, tmp_path: Path) -> None:
    """Also TCP, which has the only floating point. More than one run would start processes, which
    is beyond a translated program.
    """
    with_tcp = tmp_path / "with-tcp.toml"
    text = (SCENARIOS / "beside-tcp.toml").read_text().partition("[[checks]]")[0]
    with_tcp.write_text(text.replace('until = "40s"', 'until = "6s"'))
    command = emulated(aarch64.PYTHON, "-m", "mrc")
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    assert run(*command, "--version", cwd=tmp_path, env=environment).startswith("mrc ")
    for scenario in ("lossy-ev", with_tcp):
        words = ("sim", "run", scenario, "--set", "variants=[]", "--seeds", "1", "--json")
        here = run(sys.executable, "-m", "mrc", *words, cwd=ROOT)
        there = run(*command, *words, cwd=tmp_path, env=environment)
        (single,) = json.loads(here)["runs"]
        assert single["stats"]["completed_writes"] > 0
        assert json.loads(there)["runs"][0]["stats"] == single["stats"]
        assert (there == here) is True  # hundreds of thousands of characters


@pytest.mark.slow
def test_wheel__moves_data_on_a_kernel_with_larger_pages(site: Path) -> None:
    at = in_guest(site)
    python = ("/bin/busybox", "env", f"PYTHONPATH={at}", "/usr/bin/python3.11")
    libraries = (
        ("libmrc.so.1", "mrc_query_version"), ("libmrc-cm.so.1", "rdma_connect"),
        ("libmrc-fi.so", "fi_prov_ini"),
    )  # fmt: skip
    hello, doctor, *loaded = run_in_guest(
        [
            [*python, "-c", HELLO],
            [*python, "-m", "mrc", "doctor", "--json"],
            *([*python, "-c", LOADED, f"{at}/mrc/lib/{file}", name] for file, name in libraries),
        ],
        GUEST_SECONDS,
    )  # fmt: skip
    assert hello.output.startswith(f"hello over MRC\n{at}/mrc_transport.libs/libisal")
    told = json.loads(doctor.output)
    assert told["can_run"]
    found = {each["name"]: each for each in told["findings"]}
    for name, text in (
        ("CRC", "ISA-L, with carry-less multiplication"), ("sealed packets", "libcrypto"),
        ("libmrc", "device mrc0; no agent runs"), ("libmrc-fi", "provider mrc"),
        ("libmrc-cm", "rdma_cm for mrc run --rc"),
    ):  # fmt: skip
        assert (found[name]["state"], found[name]["found"]) == ("ok", text)
    assert [each.output for each in loaded] == ["True\n"] * 3, loaded


@pytest.mark.slow
def test_wheel__serves_verbs_on_a_kernel_with_larger_pages(site: Path, tmp_path: Path) -> None:
    compiled(tmp_path, site / "mrc" / "lib" / "libmrc.so.1", compiler=aarch64.compiler())
    mrc = f"busybox env PYTHONPATH={in_guest(site)} /usr/bin/python3.11 -m mrc"
    agent = ["/bin/sh", "-c", AGENT.format(mrc=mrc)]
    programs = [[*mrc.split(), "run", "--", f"{in_guest(tmp_path)}/{name}"] for name in VERBS]
    _, *ended = run_in_guest([agent, *programs], GUEST_SECONDS)
    assert len(ended) == len(VERBS)
    for name, each in zip(VERBS, ended, strict=True):
        assert each.returncode == 0, f"{name}: {each.output}"
        assert each.output.splitlines()[-1] == VERBS[name]
