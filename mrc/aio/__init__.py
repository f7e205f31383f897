# SPDX-License-Identifier: Apache-2.0
"""A Context in the event loop: its QPs, listeners, and how they are connected."""
