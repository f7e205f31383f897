# SPDX-License-Identifier: Apache-2.0
"""The route of a connect, the limits on who may connect, and the profiles that choose paths."""
