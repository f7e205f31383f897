# SPDX-License-Identifier: Apache-2.0
"""Performance tests between two hosts: what `mrc perf` does, for programs."""
