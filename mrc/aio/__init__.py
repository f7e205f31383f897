# SPDX-License-Identifier: Apache-2.0
"""A Context in the event loop: its engines, QPs, listeners and recordings."""
