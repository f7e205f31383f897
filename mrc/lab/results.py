# SPDX-License-Identifier: Apache-2.0
"""What `mrc lab`, and `mrc testbed import`, `export` and `join` print as JSON."""

from __future__ import annotations

from mrc.results.plain import Result


class Lessons(Result, frozen=True, kw_only=True):
    """`mrc lab list`."""

    lessons: dict[str, str]
    """Number and title of each."""


class Lesson(Result, frozen=True, kw_only=True):
    """`mrc lab N`."""

    number: int
    """Its number."""
    title: str
    """Its title."""
    text: str
    """Its page, as Markdown."""
    commands: str
    """Its commands, as a script of the shell."""


class Exported(Result, frozen=True, kw_only=True):
    """`mrc testbed export`."""

    name: str
    """Name of the test bed."""
    nodes: int
    """Hosts and switches, each a namespace or a container."""
    files: tuple[str, ...]
    """Paths of the files that it wrote; the first builds the test bed."""


class ImportedTopology(Result, frozen=True, kw_only=True):
    """`mrc testbed import`."""

    file: str
    """Path of the topology file that it wrote."""
    hosts: int
    """Those that exist."""
    planes: int
    """Number of planes."""
    t0: int
    """T0s per plane."""
    t1: int
    """T1s per plane."""
    notes: tuple[str, ...]
    """What became different, or was left out."""


class Joined(Result, frozen=True, kw_only=True):
    """`mrc testbed join`: what the machine at the other end of the interfaces has to configure."""

    host: str
    """Name of the host."""
    interfaces: tuple[str, ...]
    """Interfaces of that machine, one in each plane."""
    management: str | None
    """Its interface on the management network; null: none."""
    config: str
    """Its host configuration file."""
    hosts_file: str
    """Names and addresses of all hosts, for its /etc/hosts."""
    script: str
    """A script for sh(1) that sets all of it."""
