# SPDX-License-Identifier: Apache-2.0
"""One-page example programs, each for one use of the library: `python -m mrc.examples.hello`.

Each program runs both ends in one process over loopback and needs no setup. Between two hosts, each
end is a separate program, and `ContextConfig` needs no `interfaces`.
"""
