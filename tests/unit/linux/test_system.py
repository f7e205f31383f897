# SPDX-License-Identifier: Apache-2.0
"""Processes, processors, programs, files and privileges of this machine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slowness import until

from mrc.errors import StateError
from mrc.linux import netns, system
from mrc.linux.system import Process, check_writable, process, write_whole


def test_process__its_name_and_whether_it_is_stopped(tmp_path: Path) -> None:
    program = tmp_path / "a) T (b"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as started:
        until(lambda: process(started.pid).name == program.name)
        assert not process(started.pid).is_stopped
        os.kill(started.pid, signal.SIGSTOP)
        until(lambda: process(started.pid).is_stopped)
        os.kill(started.pid, signal.SIGCONT)
        until(lambda: not process(started.pid).is_stopped)
        started.communicate()
    assert process(started.pid) == Process()


# ---- Programs of other packages ------------------------------------------------------------------


@pytest.fixture
def only_ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one program, in the folder for the system's programs."""
    program = tmp_path / "ip"
    program.touch(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", str(tmp_path))
    return program


def test_require__returns_paths(only_ip: Path) -> None:
    assert system.require("ip") == [str(only_ip)]


@pytest.mark.usefixtures("only_ip")
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("ip", "nft"), "nft is missing: apt-get install nftables"),
        (("tc", "ss"), "tc and ss are missing: apt-get install iproute2"),
    ],
)
def test_require__names_all_packages(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(StateError) as caught:
        system.require(*names)
    assert str(caught.value) == message


def test_not_found__with_and_without_remedy() -> None:
    assert system.not_found("ping") == "ping: command not found: apt-get install iputils-ping"
    assert system.not_found("mine") == "mine: command not found"


# ---- Who may make namespaces ---------------------------------------------------------------------


ROOT = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        ("-sys_admin", "CAP_SYS_ADMIN"),
        ("-net_admin,-sys_admin", "CAP_NET_ADMIN and CAP_SYS_ADMIN"),
        ("-mknod", netns.lacks() if ROOT == [] else ""),
    ],
)
def test_lacks__root_without_capabilities(dropped: str, lacks: str) -> None:
    """As in most containers, where uid 0 may not make namespaces."""
    if ROOT and subprocess.run([*ROOT, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, or user namespaces")
    code = "from mrc.linux import netns; print(netns.lacks())"
    drop = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    done = subprocess.run(
        [*ROOT, *drop, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{lacks}\n", done.stderr


def test_lacks__an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert netns.lacks() == "root"


# ---- Files that are written whole or not at all --------------------------------------------------


def test_write_whole__replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"after", mode=0o600)
    assert (tmp_path / "file").read_bytes() == b"after"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_write_whole__a_new_file_is_not_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"first", new=True)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"second", new=True)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("new", [False, True])
def test_write_whole__a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, new: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "elsewhere")

    monkeypatch.setattr("os.link" if new else "os.replace", full)
    before = b"" if new else b"before"
    if not new:
        (tmp_path / "file").write_bytes(before)
    with pytest.raises(OSError, match="No space") as raised:
        write_whole(tmp_path / "file", b"after", new=new)
    assert raised.value.filename == str(tmp_path / "file")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [before] * (not new)


def test_write_whole__into_a_device() -> None:
    write_whole(Path(os.devnull), b"text")
    assert Path(os.devnull).is_char_device()


def test_check_writable__leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    check_writable(None, tmp_path / "file", str(tmp_path / "new"), os.devnull)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"before")]


@pytest.mark.parametrize(("name", "error"), [("a/b", FileNotFoundError), ("", IsADirectoryError)])
def test_check_writable__raises_as_write_whole(
    tmp_path: Path, name: str, error: type[OSError]
) -> None:
    for write in (check_writable, lambda path: write_whole(path, b"")):
        with pytest.raises(error) as raised:
            write(tmp_path / name)
        assert raised.value.filename == str(tmp_path / name)
