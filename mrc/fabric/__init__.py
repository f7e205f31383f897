# SPDX-License-Identifier: Apache-2.0
"""Files in TOML, and the one of a host: its ports, its peers and the paths to them."""
