# SPDX-License-Identifier: Apache-2.0
"""Who a peer is, and how two hosts prove it to each other."""
