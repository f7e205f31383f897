# SPDX-License-Identifier: Apache-2.0
"""The command line of the page: `mrc testbed view`, and `--web` of `mrc top`."""
