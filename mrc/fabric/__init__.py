# SPDX-License-Identifier: Apache-2.0
"""A fabric as data: topology, addresses, paths. Nothing here uses a socket or the engine."""
