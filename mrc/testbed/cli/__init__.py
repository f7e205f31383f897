# SPDX-License-Identifier: Apache-2.0
"""The actions of `mrc testbed`."""
