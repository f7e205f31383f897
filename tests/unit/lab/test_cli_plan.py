# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed plan` of what joins a test bed to the world, and of several machines."""

from __future__ import annotations

import re

import pytest
from printed import printed

from mrc.cli.main import main


def typed(*words: str) -> int:
    return main(["testbed", "plan", *words])


def test_plan__what_joins_it_to_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--planes", "2", "--uplink", "eth0", "--interface", "eth2=t1:2.0"]
    words += ["--interface", "eth3=mgmt", "--real-host", "h1=tap1,tap2"]
    assert typed(*words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        "h1 is a real host at tap1, tap2; what it configures: mrc testbed join h1" in shown
        and "mgmt has the interface eth3" in shown
    )
    assert typed(*words, "--json") == 0
    assert printed("testbed plan", capsys.readouterr().out)["outside"] == {
        "uplink": "eth0",
        "interfaces": [
            {"interface": "eth2", "node": "t1:2.0"}, {"interface": "eth3", "node": "mgmt"},
        ],
        "hosts": [{"host": "h1", "interfaces": ["tap1", "tap2"], "management": None}],
    }  # fmt: skip
    assert main(["testbed", "export", "--netns-script", "-", *words]) == 2
    assert "other tools join no test bed to the world" in capsys.readouterr().err


def test_plan__over_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: which machine has what, before any is reached."""
    assert typed("--hosts", "8", "--t0", "4", "--t1", "4", "--on", "host-a,host-b") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "host-b: h4..h7, t0:*.2, t0:*.3, t1:*.1, t1:*.3, 32 links to other machines" in shown
    assert typed("--t1", "1", "--on", "host-a,host-b", "--json") == 0
    told = printed("testbed plan", capsys.readouterr().out)
    a, b = told["machines"]
    assert (a["name"], a["address"], a["hosts"], a["lost"]) == ("host-a", None, ["h0"], None)
    assert b["switches"] == ["t0:1.1", "t0:2.1", "t1:2.0", "t0:3.1", "t0:4.1", "t1:4.0"]
    assert a["tunnels"] == b["tunnels"] == 4


@pytest.mark.parametrize(
    "words, why",
    [
        (("--on", "a,b,c"), "3 machines for 2 T0s in a plane: .* or --t0 3 or more"),
        (("--on", "a"), "at least two machines"),
        (("--on", "a,b", "--fabric", "emulated"), "use a kernel fabric over several"),
        (("--on", "/no/such.toml"), "/no/such.toml: No such file or directory"),
    ],
)
def test_plan__refuses_machines(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(why, line)
