# SPDX-License-Identifier: Apache-2.0
"""Beside a test bed: lessons, and what joins it to other tools, machines and the world."""
