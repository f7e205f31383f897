# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: I001
# The public names: the only list of them, as mrc/__init__.pyi is.
from mrc.testbed.library import up as up
from mrc.testbed.library import existing as existing
from mrc.testbed.library import Bed as Bed
from mrc.testbed.library import Host as Host
from mrc.testbed.library import HostCommand as HostCommand
from mrc.testbed.library import BedFault as BedFault
from mrc.testbed.results import BedHost as BedHost
from mrc.testbed.results import BedProgram as BedProgram
from mrc.testbed.results import Drained as Drained
from mrc.testbed.results import FabricCounters as FabricCounters
from mrc.testbed.results import Healed as Healed
from mrc.testbed.results import LinkCounters as LinkCounters
from mrc.testbed.results import Removed as Removed
from mrc.testbed.results import Status as Status
from mrc.testbed.faults import TargetFault as TargetFault
from mrc.testbed.shape import Outside as Outside
from mrc.testbed.shape import RealHost as RealHost
from mrc.testbed.shape import Shape as Shape
