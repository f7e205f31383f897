# SPDX-License-Identifier: Apache-2.0
"""What a sink takes of the limits of its sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrc.transfer.files import OutputDirectory
from mrc.transfer.messages import Offer
from mrc.transfer.names import FinalError
from mrc.transfer.quota import Limits, Quota
from mrc.transfer.sinks import FileSink, StreamSink, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree()
        yield tree
        tree.close()


@pytest.mark.parametrize(
    ("kind", "size", "limits", "cause"),
    [
        (FileSink, 10, Limits(files=2), "the limit of 2 files"),
        (FileSink, 10, Limits(bytes=29), "the limit of 29 bytes"),
        (StreamSink, None, Limits(files=2), "the limit of 2 files"),
    ],
)
def test_sinks__together_no_more_than_the_limits(
    tree: Tree,
    kind: Callable[[Tree, Offer, Quota], FileSink | StreamSink],
    size: int | None,
    limits: Limits,
    cause: str,
) -> None:
    quota = Quota(limits)
    for name in "ab":
        kind(tree, Offer(name, size, 4096), quota).close()
    with pytest.raises(FinalError, match=cause):
        kind(tree, Offer("c", size, 4096), quota)
