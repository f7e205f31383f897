# SPDX-License-Identifier: Apache-2.0
"""Reads the --json output of a command and validates it against its published schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from mrc.cli.schema import schema
from mrc.results import load


def printed(command: str, line: str | bytes) -> dict[str, Any]:
    """The object in a line that `mrc COMMAND` printed; raises ValidationError.

    Keys that the schema does not name are errors, too. What `mrc.results.load` makes of it has the
    same JSON.
    """
    value: dict[str, Any] = json.loads(line)
    _validator(command).validate(value)
    assert load(line).to_dict() == value
    return value


@cache
def _validator(command: str) -> Draft202012Validator:
    strict = schema(command)
    for part in strict["$defs"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return Draft202012Validator(strict)
