# SPDX-License-Identifier: Apache-2.0
"""File transfer over writes: the sender writes chunks into the receiver's window of memory."""
