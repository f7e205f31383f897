# SPDX-License-Identifier: Apache-2.0
"""What a controller decides: which paths a QP uses, and how it reacts to congestion."""
