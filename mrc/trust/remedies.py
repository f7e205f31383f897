# SPDX-License-Identifier: Apache-2.0
"""What the users of two hosts can do when one host refuses the other. Pure.

Both hosts print these texts, so a text names hosts and commands and never says "here" or "there".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

WAYS = {
    "key": "a key (--allow)",
    "code": "a one-time code",
    "secret": "a secret (--secret)",
    "authority": "a certificate authority (--ca)",
}
"""The ways in which a peer can prove itself, in words."""


class Commands(Struct, frozen=True):
    """The commands of both ends, as users type them."""

    listens: str = "mrc recv"
    """Starts the side that listens."""
    connects: str = "mrc send FILE HOST"
    """Starts the side that connects."""

    def wrong_code(self) -> str:
        """For a wrong guess."""
        return f"the code is wrong, and was good for one guess: {self._new_code()}"

    def unfinished_code(self) -> str:
        """For an exchange that ended after the one guess and before its end."""
        return f"the code was used, but the exchange did not finish: {self._new_code()}"

    def used_code(self) -> str:
        """For a code that has let a peer in."""
        return f"the one-time code has been used: {self._new_code()}"

    def _new_code(self) -> str:
        return f"{self.listens} --code prints a new one"

    def not_allowed(self, who: str) -> str:
        """For a peer with a key that is not in --allow."""
        return (
            f"{who} may not connect: {self.listens} --allow {who} lets it in, and --code on both"
            " hosts does"
        )

    def no_such_way(self, host: str, way: str, ways: Sequence[object]) -> str:
        """For a host that does not take the proof which this side has."""
        if way == "code":
            return f"{host} has no one-time code, or it has been used: {self._new_code()}"
        open_ = [each for each in WAYS if each in ways]
        if not open_:
            return (
                f"{host} lets no other host in: start {self.listens} --code on {host}, and type the"
                f" code into: {self.connects} --code"
            )
        taken = " or ".join(WAYS[each] for each in open_)
        return f"{host} takes {taken}, not {WAYS[way]}: {self._for(host, open_)}"

    def _for(self, host: str, ways: Collection[str]) -> str:
        if "code" in ways:
            return f"type the code that {host} shows into: {self.connects} --code"
        if "secret" in ways:  # also for further QPs, after a one-time code has been used
            return (
                f"run: {self.connects} --secret FILE; or if {host} has used its one-time code,"
                f" start {self.listens} --code again"
            )
        if "authority" in ways:
            return f"run: {self.connects} --ca FILE --cert FILE --key FILE"
        return f"start {self.listens} --code on {host}, and run: {self.connects} --code"
