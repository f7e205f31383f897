# SPDX-License-Identifier: Apache-2.0
"""The demo: a transfer on a test bed while a plane falls silent."""
