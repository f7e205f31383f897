# SPDX-License-Identifier: Apache-2.0
"""HOST, HOST:PORT and [ADDRESS]:PORT on a command line."""

from __future__ import annotations

import argparse

DEFAULT_PORT = 4791


def port_number(text: str) -> int:
    """An argparse type: a TCP port from 0 to 65535."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number (0 to 65535)")
    return int(text)


def listening_address(text: str) -> tuple[str, int]:
    """An argparse type: ADDRESS:PORT, or PORT on 127.0.0.1."""
    address, colon, port = text.rpartition(":")
    if not colon:
        return "127.0.0.1", port_number(port)
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif not address or ":" in address:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT, ADDRESS:PORT or [ADDRESS]:PORT")
    return address, port_number(port)


def where(host: str, port: int) -> str:
    """HOST or HOST:PORT, as `host_and_port` takes it."""
    if port == DEFAULT_PORT:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(text: str) -> tuple[str, int]:
    """An argparse type. An IPv6 address needs brackets only when a port follows it."""
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        before, colon, port = rest.partition(":")
        if not bracket or before:
            raise argparse.ArgumentTypeError(f"{text!r} is not [ADDRESS] or [ADDRESS]:PORT")
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    if colon and not port:
        raise argparse.ArgumentTypeError(f"{text!r}: the port after ':' is missing")
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r}: the host is missing")
    number = port_number(port) if port else DEFAULT_PORT
    if number == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: port 0 is not a port to connect to")
    return host, number
