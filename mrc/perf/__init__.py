# SPDX-License-Identifier: Apache-2.0
"""Measures goodput and latency between two hosts, as `mrc perf` does.

    async with mrc.perf.serve(port=0) as server:
        result = await mrc.perf.measure(f"127.0.0.1:{server.port}", seconds=1)
    print(result.results[0].goodput_bits_per_second)

`mrc.results.load` makes such a result of the JSON that `mrc perf` prints.
"""

from mrc.lazy import directory, names

__getattr__ = names(__name__)
__dir__ = directory(__name__)
