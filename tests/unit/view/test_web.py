# SPDX-License-Identifier: Apache-2.0
"""What `mrc testbed view` and `mrc top --web` say when there can be no page."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mrc.cli.main import main
from mrc.view import web

COMMANDS = (["testbed", "view"], ["top", "--web", "--local"])


@pytest.mark.parametrize("command", COMMANDS)
def test_listener__without_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web, "find_spec", lambda _: None)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the page requires tornado: pip install 'mrc-transport[view]'")


@pytest.mark.parametrize("command", COMMANDS)
def test_listener__its_port_is_in_use(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([*command, "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"TCP port {port} is in use: choose another --port")


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_listener__of_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "view", "--port", port]) == 2
    assert "--port" in capsys.readouterr().err


def test_listener__is_on_loopback_only() -> None:
    with web.listener("mrc", 0) as found:
        assert found.getsockname()[0] == "127.0.0.1"


def test_top__one_look_is_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--web", "--local", "--once"]) == 2
    assert "--once: not with --web" in capsys.readouterr().err


def test_view__of_no_test_bed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path))
    assert main(["testbed", "view", "--name", "gone"]) == 1
    assert "test bed gone is not up: mrc testbed up --name gone" in capsys.readouterr().err
