# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab: `mrc lab`, and actions of `mrc testbed`."""
