# SPDX-License-Identifier: Apache-2.0
"""`python -m mrc` is the command `mrc`."""

from __future__ import annotations

import sys

from mrc.cli.main import main

sys.exit(main())
