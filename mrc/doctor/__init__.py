# SPDX-License-Identifier: Apache-2.0
"""Checks which features of mrc this machine supports."""
