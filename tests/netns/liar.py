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


def answers(port_53: socket.socket, address: str) -> None:
    """DNS: 127.0.0.1 for the first question about an IPv4 address, `address` for the others."""
    told = "127.0.0.1"
    while True:
        query, asker = port_53.recvfrom(512)
        end = query.index(b"\0", HEADER) + 5
        question = query[HEADER:end]
        head = query[:2] + bytes.fromhex("8180 0001")
        if int.from_bytes(question[-4:-2], "big") == TYPE_A:
            found = bytes.fromhex("c00c 0001 0001 00000000 0004") + socket.inet_aton(told)
            port_53.sendto(head + bytes.fromhex("0001 0000 0000") + question + found, asker)
            told = address
        else:
            port_53.sendto(head + bytes(6) + question, asker)


def main(address: str, port: int) -> None:
    port_53 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port_53.bind((address, 53))
    threading.Thread(target=answers, args=(port_53, address), daemon=True).start()
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        while True:
            caller, _ = server.accept()
            with caller:
                print(caller.recv(4096).hex(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
