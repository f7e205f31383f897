# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: I001
# The public names, in the order of importance: the only list of them. Python loads a name from its
# module when it is first used; type checkers read this file.
from mrc.aio.context import open as open
from mrc.aio.context import Context as Context
from mrc.config import ContextConfig as ContextConfig
from mrc.linux.namespace import NetworkNamespace as NetworkNamespace
from mrc.connect.security import Security as Security
from mrc.connect.security import Authority as Authority
from mrc.connect.identity import Identity as Identity
from mrc.connect.profiles import EvProfile as EvProfile
from mrc.connect.profiles import CcProfile as CcProfile
from mrc.connect.listener import Listener as Listener
from mrc.tasks import Opening as Opening
from mrc.aio.qp import QP as QP
from mrc.engine.send_queue import Write as Write
from mrc.messages.messages import Messages as Messages
from mrc.messages.messages import Message as Message
from mrc.engine.memory import Region as Region
from mrc.engine.memory import Part as Part
from mrc.engine.memory import RemoteMemory as RemoteMemory
from mrc.enums import CcKind as CcKind
from mrc.enums import EventReason as EventReason
from mrc.enums import EvState as EvState
from mrc.enums import Seal as Seal
from mrc.enums import WcStatus as WcStatus
from mrc.connect.oob import Peer as Peer
from mrc.events import Ended as Ended
from mrc.events import Immediate as Immediate
from mrc.events import EvEvent as EvEvent
from mrc.events import PlaneEvent as PlaneEvent
from mrc.events import PlaneShareEvent as PlaneShareEvent
from mrc.events import PortEvent as PortEvent
from mrc.events import EventsLost as EventsLost
from mrc.events import QpErrorEvent as QpErrorEvent
from mrc.events import QpEvent as QpEvent
from mrc.events import QpInfo as QpInfo
from mrc.events import PlaneInfo as PlaneInfo
from mrc.events import EvInfo as EvInfo
from mrc.events import ProbeResult as ProbeResult
from mrc.fabric.hostconfig import HostConfig as HostConfig
from mrc.errors import MrcError as MrcError
from mrc.errors import ArgumentError as ArgumentError
from mrc.errors import CompletionError as CompletionError
from mrc.errors import ConfigError as ConfigError
from mrc.errors import BusyError as BusyError
from mrc.errors import ConnectError as ConnectError
from mrc.errors import ConnectRefusedError as ConnectRefusedError
from mrc.errors import ConnectTimeoutError as ConnectTimeoutError
from mrc.errors import InUseError as InUseError
from mrc.errors import PathError as PathError
from mrc.errors import PeerGoneError as PeerGoneError
from mrc.errors import ProtocolError as ProtocolError
from mrc.errors import QueueFullError as QueueFullError
from mrc.errors import ResolveError as ResolveError
from mrc.errors import StateError as StateError
from mrc.connect.security import load_secret as load_secret
from mrc import config as config
from mrc import perf as perf
from mrc import transfer as transfer
from mrc import testbed as testbed
from mrc import results as results
from mrc import blocking as blocking

__all__: list[str]
__version__: str
