# SPDX-License-Identifier: Apache-2.0
"""A chart of columns in plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 12


def column_chart(
    values: Sequence[float],
    *,
    top: float,
    rows: int,
    marks: Mapping[int, str],
    label: Callable[[float], str],
) -> list[str]:
    """A chart as lines of text: one column for each value, `rows` lines high.

    `top` is the value of the highest line; a larger value fills its column. `marks` are the
    characters below some columns. `label` formats the value of a line.
    """
    lines = []
    for row in reversed(range(rows)):
        cells = (min(max(value / top * rows - row, 0), 1) for value in values)
        blocks = "".join(_EIGHTHS[round(cell * 8)] for cell in cells)
        lines.append(f"{label(top * (row + 1) / rows):>{_LABEL_WIDTH}} |{blocks}".rstrip())
    axis = "".join(marks.get(column, "-") for column in range(len(values)))
    lines.append(f"{'':>{_LABEL_WIDTH}} +{axis}")
    return lines
