"""A pool of workers that share a receiver: the producer is as fast as they are, and never far ahead.

    amqpmesh run
    python examples/worker_pool.py [URL]

The receiver's credit counts the jobs that are not decided yet, wherever they are: on their way, waiting, at work. So a
slow pool stops the producer, and no queue grows anywhere. The router itself has one delivery of each sender at hand.
"""

import sys
from itertools import count

import trio

from amqpmesh import Connection, Receiver, connect

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1:5672"

JOBS = 60
CREDIT = 10  # jobs that may be here, or on their way
JOB_TIME = 0.05  # seconds that one takes


class Pool:
    """Workers, and how many jobs they have done."""

    def __init__(self) -> None:
        self.done = 0

    async def work(self, jobs: Receiver) -> None:
        """One worker. What it has begun and not accepted counts against the credit."""
        async for job in jobs:
            async with job:
                await trio.sleep(JOB_TIME)
            self.done += 1


async def run(connection: Connection, workers: int) -> None:
    """Send all jobs to a pool of so many workers, and tell how it went."""
    pool, numbers = Pool(), count(1)
    furthest = waits = 0
    began = trio.current_time()
    async with connection.receiver("jobs", credit=CREDIT) as incoming, trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(pool.work, incoming)
        async with connection.sender("jobs") as jobs:
            for number in numbers:
                waits += jobs.credit == 0
                await jobs.transfer(f"job {number}")  # waits for credit; not for the outcome
                furthest = max(furthest, number - pool.done)
                if number == JOBS:
                    break
        # Leaving the sender waited for the outcomes.
        nursery.cancel_scope.cancel()
    seconds = trio.current_time() - began
    print(f"{workers:2} workers: {JOBS / seconds:4.0f} jobs/s, {furthest:2} ahead at most, no credit {waits:2} times")


async def main() -> None:
    """A slow pool, then a fast one."""
    async with connect(URL) as connection:
        for workers in (2, 8):
            await run(connection, workers)


if __name__ == "__main__":
    trio.run(main)
