# SPDX-License-Identifier: Apache-2.0
"""What this machine can do of what mrc makes use of."""
