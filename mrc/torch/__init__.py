# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over mrc: a transport for the Gloo inside torch."""
