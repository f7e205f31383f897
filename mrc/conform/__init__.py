# SPDX-License-Identifier: Apache-2.0
"""Conformance: a scripted peer, its cases, and the readings of MRC that a verdict assumes."""
