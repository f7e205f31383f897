# SPDX-License-Identifier: Apache-2.0
"""Python binding of the compiled engine: handles, their lifetimes, and checked objects."""
