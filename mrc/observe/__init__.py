# SPDX-License-Identifier: Apache-2.0
"""Looking into a Context while it runs: snapshots, and who may see them."""
