# SPDX-License-Identifier: Apache-2.0
"""Access to the kernel: network namespaces, routes, links and queues."""
