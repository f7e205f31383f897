# SPDX-License-Identifier: Apache-2.0
"""The options of `mrc testbed run` for traffic, and its refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mrc.cli.main import main
from mrc.errors import StateError
from mrc.linux import programs
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Shape
from mrc.workload import compare


class FakeBed:
    shape = Shape(hosts=4, planes=2, t0=2)
    plan = make_plan("x", shape)


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs mrc testbed run on a test bed that is not asked; exit code and stderr."""
    monkeypatch.setattr("mrc.testbed.cli.main.enter_namespaces", lambda args: None)
    monkeypatch.setattr("mrc.testbed.bed.existing", lambda name: FakeBed())

    def run(*words: str) -> tuple[int, str]:
        code = main(["testbed", "run", *words])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["permutation", "--over", "mrc,udp"], "'udp' is not one of mrc, tcp, mptcp, iperf3"),
        (["permutation", "--scale", "0"], "'0' is not a factor such as 0.1 or 10%"),
        (["permutation", "--set", "topology"], "topology"),
        (["nothing"], "no scenario 'nothing'"),
        (["nothing.toml"], "nothing.toml: No such file"),
        (["ring", "--over", "iperf3"], "ring: iperf3 sends all of a flow at once"),
        (["cold-start"], "another shape; mrc testbed up cold-start builds that of the file"),
        (["plane-silent", "--set", "faults.0.target=plane:1", "--set", "faults.0.kind=lose",
          "--set", "faults.0.n=1", "--set", "faults.0.of=9"], "lose is only for mrc sim"),
        (["permutation", "--set", "transport.kind=ecmp"], "transport.kind ecmp is simulated"),
    ],
)  # fmt: skip
def test_run__refusals_are_wrong_usage(
    refusal: Callable[..., tuple[int, str]], words: list[str], said: str
) -> None:
    code, complaint = refusal(*words)
    assert code == 2 and said in complaint and complaint.count("\n") == 1


def test_run__without_the_program(
    refusal: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "find", lambda name: None)
    code, complaint = refusal("permutation", "--over", "iperf3")
    assert code == 1 and "iperf3 is missing: apt-get install iperf3" in complaint


def test_require__mptcp_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.testbed.bed.has_mptcp", lambda: False)
    with pytest.raises(StateError, match="CONFIG_MPTCP"):
        compare._require(["mptcp"])
