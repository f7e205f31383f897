# SPDX-License-Identifier: Apache-2.0
"""Access to the kernel: network namespaces, interfaces, this machine; secrets in memory."""
