# SPDX-License-Identifier: Apache-2.0
"""The compiled engine from Python: handles and lifetimes, the checked objects over them."""
