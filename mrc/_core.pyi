# SPDX-License-Identifier: Apache-2.0
# The compiled module has no types of its own: mrc.engine.native gives them.
from typing import Any

ffi: Any
lib: Any
