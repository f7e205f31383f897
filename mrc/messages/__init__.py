# SPDX-License-Identifier: Apache-2.0
"""Messages with tags over the writes of QPs: csrc/msg from Python."""
