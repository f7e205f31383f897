# SPDX-License-Identifier: Apache-2.0
"""Messages and sessions between two processes, over immediates and writes."""
