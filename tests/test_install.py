# SPDX-License-Identifier: Apache-2.0
"""The package installs into a clean environment, from a checkout and from the wheel of its source
archive. The wheel also becomes a container image (tools/image), which holds what it should.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from cbuild import has_header
from kubernetes_pods import pods
from project_text import ROOT, copy_sources

from mrc.linux import netns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The compiled module is loaded from the installed package, not from a checkout.
PROBE = """
import mrc, mrc.engine.queue_pair, pathlib, sys
folder = pathlib.Path(mrc.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert (folder / "sim" / "report.html").is_file()
assert (folder / "view" / "page" / "main.js").is_file()
assert (folder / "lab" / "lessons" / "1-spraying.md").is_file()
assert (folder / "examples" / "kubernetes" / "recv.yaml").is_file()
"""


# ISA-L comes from the wheel, and both ends of the example compute CRCs.
BUNDLED = """
import asyncio, pathlib, sys
from mrc.examples.hello import main
asyncio.run(main())
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libisal" in line}
assert all(pathlib.Path(each).is_relative_to(sys.prefix) for each in libraries) and libraries
"""
# Programs link libmrc, or open it by the name of libibverbs; both need its ISA-L.
PROVIDER = "libmrc-fi.so"
LIBRARIES = ("libmrc.so.1", "libmrc.so", "lib_mrc.so", "libibverbs.so", "libmrc-cm.so.1", PROVIDER)
LOADED = "import ctypes, sys; ctypes.CDLL(sys.argv[1])[sys.argv[2]]"
DATA = (
    "share/man/man1/mrc.1", "share/man/man1/mrc-recv.1", "lib/systemd/system/mrc-recv.service",
    "lib/systemd/system/mrc-agent.service", "share/bash-completion/completions/mrc",
    "share/zsh/site-functions/_mrc",
)  # fmt: skip


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True,
        env=os.environ | environ,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what git would clone, in a folder whose name holds a blank."""
    copy = tmp_path / "a checkout"
    copy_sources(copy)
    return copy


@pytest.fixture
def clean_venv(tmp_path: Path) -> Path:
    """The bin folder of a new virtual environment that contains only pip."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    return tmp_path / "venv" / "bin"


def broken_libfabric(folder: Path) -> Path:
    """A folder for CPATH with one header of libfabric that does not compile."""
    header = folder / "include" / "rdma" / "fi_errno.h"
    header.parent.mkdir(parents=True)
    header.write_text("#error of another version\n")
    return header.parent.parent


def check_installed(bin_folder: Path, elsewhere: Path) -> None:
    run(bin_folder / "python", "-c", PROBE, cwd=elsewhere)
    assert "send" in run(bin_folder / "mrc", "--help", cwd=elsewhere)
    assert "lossy-ev" in run(bin_folder / "mrc", "sim", "list", cwd=elsewhere)


def test_pip_install__from_a_checkout(checkout: Path, clean_venv: Path, tmp_path: Path) -> None:
    run(clean_venv / "python", "-m", "pip", "install", checkout, cwd=tmp_path)
    check_installed(clean_venv, tmp_path)


def test_pip_install__a_library_that_does_not_compile_costs_only_itself(
    checkout: Path, clean_venv: Path, tmp_path: Path
) -> None:
    if not has_header("rdma/providers/fi_prov.h"):
        pytest.skip("needs libfabric: apt-get install libfabric-dev")
    path = {"CPATH": str(broken_libfabric(tmp_path)), "MRC_WERROR": "0"}
    run(clean_venv / "python", "-m", "pip", "install", checkout, cwd=tmp_path, **path)
    check_installed(clean_venv, tmp_path)
    doctor = run(clean_venv / "mrc", "doctor", cwd=tmp_path)
    (line,) = (line for line in doctor.splitlines() if "libmrc-fi" in line)
    assert line.startswith("limited") and "fi_errno.h:1:2: error: #error of another" in line


def set_up(checkout: Path, **environ: str) -> tuple[int, str]:
    """The exit code of tools/setup and what it prints."""
    environment = os.environ | {"MRC_NO_APT": "1", "PYTHON": sys.executable} | environ
    done = subprocess.run(
        [checkout / "tools" / "setup"], env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_setup__goes_on_without_a_library_unless_all_are_required(checkout: Path) -> None:
    """It also runs without some package, which it names once."""
    if not has_header("rdma/providers/fi_prov.h"):
        pytest.skip("needs libfabric: apt-get install libfabric-dev")
    path = {"CPATH": str(broken_libfabric(checkout.parent)), "MRC_WERROR": "0"}
    table = checkout / "tools" / "packages"
    table.write_text(f"{table.read_text()}test mrc-none file:/mrc-none a test of set-up\n")
    code, said = set_up(checkout, **path)
    assert code == 0, said
    assert re.search(r"^set-up: libmrc-fi.so is not built: .*#error of another", said, re.MULTILINE)
    assert said.count("mrc-none is missing: a test of set-up") == 1
    assert "sudo apt-get install mrc-none" in said
    run(checkout / ".venv" / "bin" / "python", "-c", "import mrc.engine.queue_pair", cwd=checkout)
    assert set_up(checkout, **path) == (0, "")
    code, said = set_up(checkout, **path | {"MRC_WERROR": "1"})
    assert code == 1 and "cannot continue: the engine does not compile" in said
    assert "error: #error of another" in said and "mrc-none" not in said
    on_a_terminal = ("script", "-qec", "tools/setup", "/dev/null")
    shown = run(*on_a_terminal, cwd=checkout, MRC_NO_APT="1", MRC_WERROR="1")
    assert re.search(r"set-up: engine and simulator: \d+ s: compiled csrc/", shown)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the two files of tools/wheel, which builds the wheel from the archive."""
    pytest.importorskip("auditwheel", reason="tools/setup")
    folder = tmp_path_factory.mktemp("dist")
    printed = run(ROOT / "tools" / "wheel", "--output", folder, cwd=folder)
    assert sorted(printed.split()) == sorted(map(str, folder.iterdir()))
    return folder


def test_wheel__tag_licences_and_data(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert "-cp311-abi3-manylinux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (licence,) = (name for name in names if name.endswith("licenses/LICENSE"))
        text = archive.read(licence).decode()
    assert {"mrc/_core.abi3.so", "mrc/_sim.abi3.so", "mrc/_emu.abi3.so"} <= set(names)
    assert "Apache License" in text and "Intel Corporation" in text and "BSD-3" in text
    for name in DATA:
        assert any(each.endswith(f".data/data/{name}") for each in names), name
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"wheel-data/{name}" for name in DATA} <= packed


def test_wheel__needs_no_compiler(dist: Path, clean_venv: Path, tmp_path: Path) -> None:
    """It also runs on processors without AVX-512, such as valgrind's."""
    alone = {"PATH": f"{clean_venv}", "CC": "/bin/false"}
    options = ("--only-binary", ":all:", "--find-links", dist)
    run(clean_venv / "pip", "install", *options, "mrc-transport", cwd=tmp_path, **alone)
    check_installed(clean_venv, tmp_path)
    assert run(clean_venv / "python", "-c", BUNDLED, cwd=tmp_path, **alone) == "hello over MRC\n"
    for name in DATA:
        assert (clean_venv.parent / name).is_file()
    folder = Path(run(clean_venv / "mrc", "run", "--libdir", cwd=tmp_path).strip())
    assert sorted(path.name for path in folder.iterdir()) == sorted(LIBRARIES)
    for name in ("libmrc.so.1", "libibverbs.so"):
        run(clean_venv / "python", "-c", LOADED, folder / name, "mrc_query_version", cwd=tmp_path)
    run(clean_venv / "python", "-c", LOADED, folder / PROVIDER, "fi_prov_ini", cwd=tmp_path)
    if shutil.which("valgrind"):
        command = ("valgrind", "--tool=none", "-q", clean_venv / "mrc", "sim", "run", "lossy-ev")
        single = ("--set", "variants=[]")
        assert "writes completed" in run(*command, *single, cwd=tmp_path)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="tries the oldest Python, 3.11")
def test_lock__lowest(tmp_path: Path) -> None:
    """The oldest versions that pyproject.toml allows work; here only with a few tests."""
    command = (ROOT / "tools" / "lock", "--lowest", "tests/unit/aio/test_context.py")
    assert " passed" in run(*command, cwd=tmp_path)


# ---- the image -----------------------------------------------------------------------------------

PODS = {pod.name: pod for pod in pods()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked image: config.json and rootfs."""
    if netns.lacks() or int(Path("/proc/self/uid_map").read_text().split()[2]) == 1:
        pytest.skip("tools/image requires root")
    if shutil.which("umoci") is None:
        pytest.skip("needs umoci: apt-get install umoci")
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    run(ROOT / "tools" / "wheel", "--output", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    archive = folder / "made" / "mrc.oci.tar"
    run(ROOT / "tools" / "image", "--wheel", wheel, "--output", archive, "--tag", "0.4")
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    layout = folder / "layout"
    layout.mkdir()
    run("tar", "--extract", f"--file={archive}", f"--directory={layout}")
    run("umoci", "unpack", f"--image={layout}:mrc:0.4", folder / "bundle")
    return folder / "bundle"


def test_image__its_settings(bundle: Path) -> None:
    """Its program runs; tests/netns/test_rootless.py runs the arguments of the pods."""
    enter = (
        'for each in dev proc sys; do mount --rbind /$each "$0/$each"; done; exec chroot "$0" "$@"'
    )
    words = ("unshare", "--mount", "sh", "-ec", enter, bundle / "rootfs", "mrc", "doctor")
    assert "a write over loopback" in run(*words)
    config = json.loads((bundle / "config.json").read_text())
    assert config["process"]["args"] == ["mrc", "--help"]
    user = {key: config["process"]["user"][key] for key in ("uid", "gid")}
    assert user == {"uid": 65532, "gid": 65532}
    for pod in PODS.values():
        ids = pod.spec["securityContext"]
        assert user == {"uid": ids["runAsUser"], "gid": ids["runAsGroup"]}
    assert config["annotations"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image__holds_nothing_of_this_machine(bundle: Path) -> None:
    root = bundle / "rootfs"
    for name in ("etc/resolv.conf", "etc/hosts", "given", "made", "etc/pip.conf"):
        assert not (root / name).exists(), name
    assert not list((root / "usr/local/share/ca-certificates").iterdir())
    assert not list((root / "root").iterdir())
    every = (Path(where, name) for where, _, names in os.walk(root) for name in names)
    modes = (path.lstat().st_mode for path in every if not path.is_symlink())
    assert not [mode for mode in modes if mode & (stat.S_ISUID | stat.S_ISGID)]
