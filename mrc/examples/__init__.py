# SPDX-License-Identifier: Apache-2.0
"""Programs of a page, one for each thing that the library does: `python -m mrc.examples.hello`.

Each runs both ends in one process, over loopback, and needs nothing to be set up. Between two hosts
the ends are two programs, and `ContextConfig` needs no interfaces.
"""
