# SPDX-License-Identifier: Apache-2.0
"""What the commands print as JSON: declared types, and the JSON Schemas made from them."""
