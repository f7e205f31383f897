# SPDX-License-Identifier: Apache-2.0
"""Between the event loop and a Device: commands out, events in, interfaces that come and go."""
