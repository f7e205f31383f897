# SPDX-License-Identifier: Apache-2.0
"""The kernel: network namespaces, routes, links and queues."""
