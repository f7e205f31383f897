# SPDX-License-Identifier: Apache-2.0
"""The agent of a host: the control plane of programs that use libmrc (csrc/verbs)."""
