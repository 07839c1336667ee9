"""What happens once per transfer or disposition: typed Python that runs as it is, and compiled."""

from typing import Final

from amqpmesh.router.kernel.binding import Bound, bind

#: Which of the two runs in this process.
BOUND: Final[Bound] = bind()
