# SPDX-License-Identifier: Apache-2.0
"""The compiled engine in Python: its memory, queue pairs, ports, calls and events."""
