# SPDX-License-Identifier: Apache-2.0
"""The traffic of a scenario between the hosts of a test bed, beside the simulator."""
