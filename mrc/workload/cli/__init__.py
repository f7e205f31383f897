# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed run`."""
