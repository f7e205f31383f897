# SPDX-License-Identifier: Apache-2.0
"""A controller's decisions: the paths that a QP uses, and its reaction to congestion."""
