# SPDX-License-Identifier: Apache-2.0
"""What two hosts say to each other before and beside the packets, and who may say it."""
