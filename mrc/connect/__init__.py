# SPDX-License-Identifier: Apache-2.0
"""The out-of-band exchange of two hosts over TCP, and the limits on who may connect."""
