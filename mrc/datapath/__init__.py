# SPDX-License-Identifier: Apache-2.0
"""Connects the event loop to a Device: commands, events, and changes of interfaces."""
