# SPDX-License-Identifier: Apache-2.0
"""ProVerif on the models of the exchange: all that has to hold is proved, and each flaw is found.

A flaw is a change of a model. It shows that the model can express the attack which the design
prevents.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec import Struct

PROVERIF = shutil.which("proverif")
FOLDER = Path(__file__).with_name("exchange")
LIBRARIES = {
    "keys": ("exchange", "named", "nameless"),
    "authority": ("exchange", "named"),
    "code": ("exchange", "nameless", "code"),
    "guess": ("exchange", "code"),
}
REACHED = "not event(reached("

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROVERIF is None, reason="proverif is not installed"),
]


class Flaw(Struct, frozen=True):
    """A change of one file, and the queries that fail then; no others do."""

    model: str
    file: str
    before: str
    after: str
    fails: set[str]


NAMED = {
    "named lets_in agreement",
    "named serves agreement",
    "named connected agreement",
    "named connected secrecy",
    "named serves secrecy",
}
NAMELESS = {query.replace("named", "nameless") for query in NAMED}
COVERED = "  binding(who, cert, ns, nc)"

FLAWS = {
    "a signature or MAC does not cover the certificate": Flaw(
        "keys",
        "exchange.pvl",
        COVERED,
        "  binding(who, nobody, ns, nc)",
        # The connecting side knows the host's key by TLS, whatever it then signs.
        NAMELESS | NAMED - {"named connected agreement", "named connected secrecy"},
    ),
    "a proof of the code does not cover the certificate": Flaw(
        "code", "exchange.pvl", COVERED, "  binding(who, nobody, ns, nc)", NAMELESS
    ),
    "both sides prove the secret alike": Flaw(
        "keys",
        "exchange.pvl",
        COVERED,
        "  binding(connects, cert, ns, nc)",
        {"nameless connected agreement", "nameless connected secrecy"},
    ),
    "the connecting side does not compare the key": Flaw(
        "keys", "keys.pv", "    if cert = known then\n", "", NAMED - {"named serves secrecy"}
    ),
    "the connecting side goes on in plain": Flaw(
        "keys",
        "keys.pv",
        "known: bitstring) =\n  out(net, tls_wish);\n",
        """known: bitstring) =
  (in(net, heard: bitstring);
   if heard = plain_hello then hello_of_client(way, nobody, known, plain_hello))
| out(net, tls_wish);
""",
        {
            "named connected agreement",
            "named connected secrecy",
            "nameless connected agreement",
            "nameless connected secrecy",
        },
    ),
    "the random bytes of the hellos are no secret": Flaw(
        "keys",
        "exchange.pvl",
        "  new random: bitstring;\n",
        "  let random = attributes in\n",
        {
            f"{who} {side} secrecy"
            for who in ("named", "nameless")
            for side in ("connected", "serves")
        },
    ),
    "the MAC is that of the code itself": Flaw(
        "guess",
        "code.pvl",
        "(mine, mac(made, over(listens",
        "(mine, mac(code, over(listens",
        {"guess"},
    ),
    "the listening side takes a point that no code blinds": Flaw(
        "guess",
        "code.pvl",
        "exp(unblind(code, connects, message), b)",
        "exp(message, b)",
        {"guess"},
    ),
    "any certificate of the authority will do": Flaw(
        "authority",
        "authority.pv",
        "  if their_name = host then\n",
        "",
        NAMED - {"named serves secrecy"},
    ),
    "the listening side checks no signature": Flaw(
        "authority",
        "authority.pv",
        "  if signed(signature, their_key) = (verify, before, shown) then\n",
        "",
        NAMED - {"named connected agreement", "named connected secrecy"},
    ),
}


def name_of(query: str) -> str:
    """What a query asks: who, after which event, and whether for agreement or secrecy."""
    if query.startswith("Weak secret"):
        return "guess"
    event = re.search(r"\b(lets_in|serves|connected|reached)\(", query)
    if event is None:
        return query
    who = "named" if "honest(" in query else "nameless"
    return f"{who} {event[1]} {'secrecy' if 'attacker' in query else 'agreement'}"


def verdicts(model: str, folder: Path) -> dict[str, str]:
    """What ProVerif says of each query."""
    libraries = [
        word for name in LIBRARIES[model] for word in ("-lib", str(folder / f"{name}.pvl"))
    ]
    done = subprocess.run(
        [str(PROVERIF), *libraries, folder / f"{model}.pv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(
        r"^RESULT ([^(].*?) (is true|is false|cannot be proved)\b", done.stdout, re.M
    )
    return dict(found)


@pytest.mark.parametrize("model", LIBRARIES)
def test_exchange__holds(model: str) -> None:
    """An end that cannot be reached would prove all else."""
    found = verdicts(model, FOLDER)
    assert found
    for query, verdict in found.items():
        assert verdict == ("is false" if query.startswith(REACHED) else "is true"), query


@pytest.mark.parametrize("name", FLAWS)
def test_exchange__flaw_is_found(name: str, tmp_path: Path) -> None:
    flaw = FLAWS[name]
    folder = shutil.copytree(FOLDER, tmp_path / "exchange")
    text = (folder / flaw.file).read_text()
    assert flaw.before in text
    (folder / flaw.file).write_text(text.replace(flaw.before, flaw.after))
    found = verdicts(flaw.model, folder)
    assert {
        name_of(query)
        for query, verdict in found.items()
        if verdict == "is false" and not query.startswith(REACHED)
    } == flaw.fails
