# SPDX-License-Identifier: Apache-2.0
"""Views of a running Context: snapshots, metrics, and who may see them."""
