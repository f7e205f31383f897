# SPDX-License-Identifier: Apache-2.0
"""Tables on a terminal."""

from __future__ import annotations

from mrc.cli.terminal import Block, rendered


def test_rendered__is_the_same_table_with_colours() -> None:
    block = Block("paths", ("path", "state"), [("t1:1.0", "GOOD"), ("t1:1.1", "ASSUMED_BAD, GOOD")])
    text = rendered(block)
    assert text.plain == block.text()
    coloured = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert coloured[0] == ("paths", "bold")
    assert sorted(coloured[2:]) == [("ASSUMED_BAD", "red"), ("GOOD", "green"), ("GOOD", "green")]


def test_rendered__a_title_alone() -> None:
    assert rendered(Block("nothing here")).plain == "nothing here"
