# SPDX-License-Identifier: Apache-2.0
"""Reads captures and prints MRC packets, without Wireshark and without the engine."""
