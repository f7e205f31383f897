# SPDX-License-Identifier: Apache-2.0
"""Files over writes: the receiver opens its file to the peer, and the peer writes into it."""
