# SPDX-License-Identifier: Apache-2.0
"""What `mrc key` prints as JSON."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.connect.security import Security
from mrc.errors import ConfigError
from mrc.linux.system import write_whole
from mrc.results import Result


class KeyFile(Result, frozen=True, kw_only=True):
    """A key of this user, or a secret that was made."""

    path: str
    """The file."""
    fingerprint: str | None
    """Its fingerprint; null for a secret."""


HELP = "show the fingerprint of this user's key, which is made on first use"
EXAMPLES = """\
examples:
  mrc key                              show the fingerprint, for mrc recv --allow and others
  mrc key >> allowed                   a line for a file of --allow
  mrc key --secret fleet.key           make a secret of 32 bytes, to be copied to all hosts
"""
OPTIONS = """
--identity FILE  file of the key [$MRC_IDENTITY, else ~/.config/mrc/identity.pem]
--secret FILE    instead make this file with a random secret, for --secret of other commands
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, identity={"type": Path}, secret={"type": Path})
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.secret is not None:
        try:
            write_whole(
                args.secret, secrets.token_bytes(Security.SECRET_BYTES), mode=0o600, new=True
            )
        except FileExistsError:
            wrong = f"{args.secret}: exists: remove it first, or name another file"
            raise ConfigError(wrong) from None
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConfigError(f"{args.secret}: {why}") from error
        out.note(f"made {args.secret}")
        out.result(KeyFile(path=str(args.secret), fingerprint=None))
        return 0
    identity = Security(identity=args.identity).load_identity()
    out.text(identity.fingerprint)
    out.result(KeyFile(path=str(identity.path), fingerprint=identity.fingerprint))
    return 0
