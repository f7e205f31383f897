# SPDX-License-Identifier: Apache-2.0
"""Programs over a test bed."""
