# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a subcommand, each with HELP, EXAMPLES, `add_arguments` and `run`."""
