# SPDX-License-Identifier: Apache-2.0
"""A name server that leads the first caller home and all others to itself, and what comes there.

Run with its address and a TCP port, inside a namespace. Prints the first bytes of each connection,
in hexadecimal digits.
"""

from __future__ import annotations

import socket
import sys
import threading

HEADER, TYPE_A = 12, 1


def answer(query: bytes, addresses: list[str]) -> bytes:
    """DNS: the first of these IPv4 addresses, which goes unless it is the last one; no others."""
    question = query[HEADER : query.index(b"\0", HEADER) + 5]
    found = b""
    if int.from_bytes(question[-4:-2], "big") == TYPE_A:
        found = bytes.fromhex("c00c 0001 0001 00000000 0004") + socket.inet_aton(addresses[0])
        addresses[:-1] = addresses[1:-1]
    count = bytes((0, 1, 0, len(found) > 0, 0, 0, 0, 0))
    return query[:2] + bytes.fromhex("8180") + count + question + found


def answers(port_53: socket.socket, addresses: list[str]) -> None:
    while True:
        query, asker = port_53.recvfrom(512)
        port_53.sendto(answer(query, addresses), asker)


def main(address: str, port: int) -> None:
    port_53 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port_53.bind((address, 53))
    threading.Thread(target=answers, args=(port_53, ["127.0.0.1", address]), daemon=True).start()
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        while True:
            caller, _ = server.accept()
            with caller:
                print(caller.recv(4096).hex(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
