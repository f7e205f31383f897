# SPDX-License-Identifier: Apache-2.0
"""The nftables rules of a test bed's host. Pure."""

from __future__ import annotations

ECN = """\
table ip6 mrc
delete table ip6 mrc
table ip6 mrc {
  chain repair {
    type filter hook prerouting priority raw
    ip6 nexthdr 41 ip6 ecn ce @nh,330,2 set 3
  }
}
"""
"""End.DT6 discards the ECN mark of the outer header, so this rule first copies CE to the inner
one.
"""

REASSEMBLY = """\
table ip6 mrc_reassembly
delete table ip6 mrc_reassembly
table ip6 mrc_reassembly {
  chain unused {
    meta l4proto udp tproxy to :1
  }
}
"""
"""Linux encapsulates a datagram before it fragments it, and End.DT6 drops fragments. The kernel
reassembles fragments before it routes them while some rule needs whole packets. No packet meets
this rule, because nothing leads to its chain: unlike a rule with `ct`, it tracks no connection and
leaves NAT alone.
"""
