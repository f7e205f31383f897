# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed` on the command line: its modules and errors, and `plan`, as an ordinary user."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from printed import printed
from processes import loaded

from mrc import products
from mrc.cli.completion import parsers
from mrc.cli.main import build_parser, main
from mrc.errors import ConfigError
from mrc.testbed import rootless, state
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import ACTIONS
from mrc.testbed.shape import Shape
from mrc.testbed.signals import FirstSignal, interruptible, undisturbed
from mrc.testbed.state import BedState

OF_OTHERS = ("mrc.lab", "mrc.view")


def test_actions__without_the_packages_of_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has = products.has
    monkeypatch.setattr(products, "has", lambda name: not name.startswith(OF_OTHERS) and has(name))
    programs = {each.prog for each in parsers(build_parser(["testbed"]))}
    assert {"mrc testbed up", "mrc testbed rsh", "mrc testbed run"} < programs
    assert not programs & {"mrc testbed view", "mrc testbed import"}
    assert main(["testbed", "import", "x.yaml"]) == 2
    assert "import" in capsys.readouterr().err


def test_actions__of_every_module_are_in_the_table() -> None:
    for each in parsers(build_parser(["testbed"])):
        words = each.prog.split()
        if len(words) == 3:
            module, _ = ACTIONS[words[2]]
            assert import_module(module).ACTIONS[words[2]] is each.get_default("act")


def test_testbed__loads_only_the_action_that_is_asked_for() -> None:
    modules = loaded("from mrc.cli.main import main\nmain(['testbed', 'plan'])")
    others = {module for module, _ in ACTIONS.values()} - {"mrc.testbed.cli.plan"}
    assert "mrc.testbed.cli.plan" in modules and not others & modules
    assert not {"mrc.testbed.netlink", "mrc.testbed.bed", "mrc.lab.machines"} & modules


def test_testbed__needs_only_messages_of_pyroute2() -> None:
    modules = loaded("import mrc.testbed.bed")
    assert "pyroute2.netlink.rtnl.tcmsg" in modules
    assert not {"pyroute2.ndb", "pyroute2.iproute", "pyroute2.ethtool"} & modules


@pytest.mark.parametrize(
    "order", [("mrc.testbed.netlink", "pyroute2"), ("pyroute2", "mrc.testbed.netlink")]
)
def test_pyroute2__is_whole_for_the_programs_of_others(order: tuple[str, str]) -> None:
    names = "[pyroute2.IPRoute, pyroute2.netlink.nla, mrc.testbed.netlink.nla]"
    check = "from pyroute2 import NDB, config\nimport pyroute2.netns\nassert a[1] is a[2]"
    modules = loaded(f"import {order[0]}, {order[1]}\na = {names}\n{check}")
    assert "pyroute2.ndb.main" in modules


def test_testbed__a_signal_at_the_end_leaves_no_keeper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[bool] = []

    def leave(in_use: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        left.append(True)

    monkeypatch.setattr(rootless, "leave", leave)
    assert main(["testbed", "status", "--name", "never-built", "--quiet"]) == 130
    assert left == [True]
    assert capsys.readouterr().err == "mrc testbed status: interrupted\n"


@pytest.mark.parametrize("handled", [interruptible, undisturbed, FirstSignal])
def test_signals__nohup_and_what_was_before(handled: type[FirstSignal]) -> None:
    wanted: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_IGN,
    }
    before = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
    try:
        with handled():
            inside = {signum: signal.getsignal(signum) for signum in wanted}
        assert {signum: signal.getsignal(signum) for signum in wanted} == wanted
        changed = {signum for signum in wanted if inside[signum] != wanted[signum]}
        assert changed - {signal.SIGINT} == {signal.SIGTERM}
    finally:
        for signum, of in before.items():
            signal.signal(signum, of)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "FILE"),
        ("plan", "no-such-topology"),
        ("up", "--name", "never-built", "FILE"),
    ],
)
@pytest.mark.parametrize("name", ["wrong.toml", "missing.toml"])
def test_actions__a_bad_file_is_wrong_use(
    words: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("hosts = \n")
    argv = [str(tmp_path / name) if word == "FILE" else word for word in words]
    assert main(["testbed", *argv]) == 2
    error = capsys.readouterr().err
    assert (argv[-1] in error, error.count("\n")) == (True, 1)
    assert "Errno" not in error


def test_actions__an_unknown_option_names_the_help_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["testbed", "up", "--bogus"]) == 2
    where = "mrc testbed up"
    assert (
        f"{where}: unrecognized arguments: --bogus; see {where} --help" in capsys.readouterr().err
    )


def test_help__begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["testbed", "--help"])
    assert capsys.readouterr().out.startswith("examples:\n  mrc testbed")


# ---- `plan` --------------------------------------------------------------------------------------


def typed(*words: str) -> int:
    return main(["testbed", "plan", *words])


def test_plan__of_three_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--hosts", "8", "--planes", "2", "--t1", "4", "--pods", "2", "--t2", "4") == 0
    shown = capsys.readouterr().out
    assert "2 planes of 2 pods, 4 T0s and 2 T1s each, and 4 T2s" in shown
    assert typed("clos", "--pods", "2", "--t2", "4", "--rate", "1gbit", "--json") == 0
    told = printed("testbed plan", capsys.readouterr().out)
    assert (told["pods"], told["t2"], told["core_rate_bits_per_second"]) == (2, 4, 10**9)


def test_plan__draws_planes_that_are_alike_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("unequal-planes", "--planes", "5") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "plane:3 has 50 Mbit/s" in shown
    assert "planes 1, 5 h0 h1 -- t0:P.0 --+-- t1:P.0" in shown
    assert "plane 4     h0 h1 -- t0:4.0 --+-- t1:4.0" in shown


def test_plan__options_count_more_than_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates keep their ratio; delays are those of the options."""
    words = ("oversubscribed", "--rate", "1gbit", "--delay", "1ms", "--mtu", "1500")
    assert typed(*words, "--fabric", "emulated", "--json") == 0
    told = printed("testbed plan", capsys.readouterr().out)
    assert told["host_rate_bits_per_second"] == 10**9
    assert told["fabric_rate_bits_per_second"] == 5 * 10**8
    assert (told["host_delay_ns"], told["fabric_delay_ns"], told["mtu_bytes"]) == (
        10**6, 10**6, 1500,
    )  # fmt: skip
    assert told["links"]["uplink:2.1.1"] == {
        "rate_bits_per_second": 5 * 10**8, "delay_ns": 10**6, "loss_share": 0.0, "mtu_bytes": 1500,
    }  # fmt: skip
    assert told["built"]["namespaces"] == 8 + 2


def test_plan__without_a_file_is_the_usual_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--hosts", "3", "--rate", "none") == 0
    shown = capsys.readouterr().out
    assert "3 hosts, 1 below each T0; 4 planes of 3 T0s and 2 T1s" in shown
    assert "host links no rate limit" in shown


def test_plan__links_with_properties_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, drawn = tmp_path / "own.toml", tmp_path / "own.svg"
    path.write_text(
        "[topology]\nhosts = 2\nplanes = 2\nt1 = 1\nhost_rate = '1Gbit/s'\n"
        "[[links]]\ntarget = 'h0>t0:1.0'\nrate = '20Mbit/s'\nmtu = 1500\n"
        "[[links]]\ntarget = 'uplink:1.1.0'\nloss = '0.5%'\n"
    )
    assert typed(str(path), "--svg", str(drawn)) == 0
    shown = capsys.readouterr().out
    assert "h0>t0:1.0 has 20 Mbit/s, MTU 1500\nuplink:1.1.0 has loss 0.5%\n" in shown
    assert "plane 1 " in shown and "plane 2 " in shown
    texts = {text.text for text in ElementTree.parse(drawn).getroot().iter()}
    assert {"up 20 Mbit/s, MTU 1500", "loss 0.5%"} <= texts
    assert typed(str(path), "--json") == 0
    links = printed("testbed plan", capsys.readouterr().out)["links"]
    usual = {"rate_bits_per_second": 10**9, "delay_ns": 0, "loss_share": 0.0, "mtu_bytes": 9000}
    assert (links["t0:1.0>h0"], links["link:h0.2"]) == (usual, usual)
    slow = usual | {"rate_bits_per_second": 20 * 10**6, "mtu_bytes": 1500}
    assert links["h0>t0:1.0"] == slow and "link:h0.1" not in links
    assert links["uplink:1.1.0"]["loss_share"] == 0.005


def test_plan__as_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bed.svg"
    assert typed("unequal-planes", "--svg", str(path)) == 0
    root = ElementTree.parse(path).getroot()
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"h0", "t0:1.0", "t1:4.1", "plane 2"} <= set(names)
    unlike = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class")]
    assert len(unlike) == 2 * (4 + 4) + 1  # all links of two planes, and an uplink
    assert names[0] == "unequal-planes: four planes: one is far away, one is slow, and"
    assert {"each 1000 us", "each 50 Mbit/s", "20 Mbit/s, 2000 us"} <= set(names)
    assert "prefers-color-scheme: dark" in path.read_text()


def test_plan__lists_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--list") == 0
    assert "unequal-planes  four planes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("nowhere",), 2, "no topology 'nowhere'"),
        (("--hosts", "5", "--t0", "2"), 2, "hosts is 5, not a multiple of t0"),
        (("--hosts", "5", "--t0", "2"), 2, "t0 (2): use 4 or 6"),
        (("--pods", "2"), 2, "pods is 2 without t2: only T2s join pods; set t2 to a multiple of"),
        (("--t2", "2"), 2, "t2 is 2 with one pod: T2s join pods; set pods to 2 or more"),
        (
            ("--pods", "2", "--t1", "3", "--t2", "2"),
            2,
            "t1 is 3, not a multiple of pods (2)",
        ),
        (("--pods", "2", "--t1", "8", "--t2", "6"), 2, "T1s of a pod (4): use 4 or 8"),
        (("--pods", "2", "--t2", "-2"), 2, "t2 is -2, not in 0..4096"),
        (("--pods", "3", "--t2", "3"), 2, "t0 is 2, not a multiple of pods (3): use 3"),
        (("--jitter", "1us"), 2, "jitter would reorder in a kernel fabric: use --fabric emulated"),
        (("--no-trim",), 2, "a kernel fabric cannot mark or trim: use --fabric emulated"),
        (("clos", "--svg", "/nowhere/x.svg"), 1, "/nowhere/x.svg: No such file"),
    ],
)
def test_plan__wrong_use_is_one_line(
    words: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words) == code
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


# ---- A tree without the packages that add to a test bed ------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has = products.has
    monkeypatch.setattr(products, "has", lambda name: not name.startswith("mrc.lab") and has(name))
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path))


@pytest.mark.usefixtures("alone")
def test_plan__has_no_options_of_extras(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["testbed", "plan", "--help"])
    shown = capsys.readouterr().out
    assert "--hosts" in shown and "--on" not in shown and "--uplink" not in shown
    assert main(["testbed", "plan", "--json"]) == 0


@pytest.mark.usefixtures("alone")
def test_bed__that_is_joined_to_the_world_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[topology]\nhosts = 2\nplanes = 1\nt1 = 1\n[outside]\nuplink = "eth0"\n')
    assert main(["testbed", "plan", str(path)]) == 1
    assert capsys.readouterr().err == (
        "mrc testbed plan: this test bed needs mrc.lab.outside, which is not installed\n"
    )


@pytest.mark.usefixtures("alone")
def test_bed__over_several_machines_is_only_taken_down() -> None:
    state.save("x", BedState(Shape(), up=True, machines={"every": []}))
    with pytest.raises(ConfigError, match=r"needs mrc\.lab\.machines, which is not installed"):
        Testbed.existing("x")
