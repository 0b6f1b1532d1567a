"""Parts from outside the package, named for server, nodes and replays alike."""

from own_cache import CachedMean
from own_clip import Clip
from own_momentum import Momentum

from asyncmanifold import PARTS

PARTS["buffer"]["cached-mean"] = CachedMean
PARTS["outgoing"]["clip"] = Clip
PARTS["server_optimizer"]["momentum"] = Momentum
