# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed plan` on the command line: it requires no privileges."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from printed import printed

from mrc.cli.main import main


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
