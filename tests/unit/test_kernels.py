# SPDX-License-Identifier: Apache-2.0
"""tools/maintainers/kernels reads the output of a guest."""

from __future__ import annotations

from project_text import tool

CUT_OFF = """\
collected 4 items

tests/netns/test_a.py::test_one PASSED                            [ 25%]
tests/netns/test_a.py::test_two[a b] FAILED                       [ 50%]
tests/netns/test_a.py::test_three SKIPPED (no netem)              [ 75%]
tests/netns/test_a.py::test_four """
WHOLE = (
    CUT_OFF
    + """PASSED                           [100%]
=========================== short test summary info ============================
SKIPPED [1] tests/netns/test_a.py:7: no netem
FAILED tests/netns/test_a.py::test_two[a b] - assert False
============= 1 failed, 2 passed, 1 skipped in 7.00s =============
mrc-kernels-exit: 1
"""
)


kernels = tool("maintainers/kernels")


def test_read_log__of_a_whole_run() -> None:
    result = kernels.Result("6.1", "6.1.0")
    kernels.read_log(result, WHOLE)
    assert result.exit_code == 1
    assert result.summary == "1 failed, 2 passed, 1 skipped"
    assert result.failed == ["tests/netns/test_a.py::test_two[a b]"]
    assert result.skipped == ["[1] tests/netns/test_a.py:7: no netem"]


def test_read_log__of_a_run_that_was_cut_off() -> None:
    result = kernels.Result("6.1", "6.1.0", summary="not finished after 5 minutes")
    kernels.read_log(result, CUT_OFF)
    assert result.exit_code is None
    assert (
        result.summary == "not finished after 5 minutes; until then 1 failed, 1 passed, 1 skipped"
    )
    assert result.failed == ["tests/netns/test_a.py::test_two[a b]"]
