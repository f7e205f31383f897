# SPDX-License-Identifier: Apache-2.0
"""Test beds: hosts, T0s and T1s as network namespaces, with faults on request."""
