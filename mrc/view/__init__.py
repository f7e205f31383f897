# SPDX-License-Identifier: Apache-2.0
"""A page in a browser that shows a test bed and endpoints, and breaks and heals parts."""
