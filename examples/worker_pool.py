"""A pool of workers that share a receiver, and a producer that the workers slow down.

    amqpmesh run
    python examples/worker_pool.py [URL]

The receiver's credit limits the jobs without an outcome, wherever they are: in flight, waiting, or in work. So a slow
pool stops the producer, and no queue grows. The router itself holds at most one more delivery of each sender.
"""

import sys
from itertools import count

import trio

from amqpmesh import Connection, Receiver, connect

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1:5672"

JOBS = 60
CREDIT = 10  # jobs that may be in work or in flight
JOB_TIME = 0.05  # seconds for a job


class Pool:
    """Workers, and the number of jobs that they have done."""

    def __init__(self) -> None:
        self.done = 0

    async def work(self, jobs: Receiver) -> None:
        """Work as one worker. A job that it has begun and not accepted counts against the credit."""
        async for job in jobs:
            async with job:
                await trio.sleep(JOB_TIME)
            self.done += 1


async def run(connection: Connection, workers: int) -> None:
    """Send all jobs to a pool of workers, and print the result."""
    pool, numbers = Pool(), count(1)
    furthest = waits = 0
    began = trio.current_time()
    async with connection.receiver("jobs", credit=CREDIT) as incoming, trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(pool.work, incoming)
        async with connection.sender("jobs") as jobs:
            for number in numbers:
                waits += jobs.credit == 0
                await jobs.transfer(f"job {number}")  # waits for credit, not for the outcome
                furthest = max(furthest, number - pool.done)
                if number == JOBS:
                    break
        # The end of the sender's block has waited for the outcomes.
        nursery.cancel_scope.cancel()
    seconds = trio.current_time() - began
    print(f"{workers:2} workers: {JOBS / seconds:4.0f} jobs/s, {furthest:2} ahead at most, no credit {waits:2} times")


async def main() -> None:
    """Run a slow pool, then a fast one."""
    async with connect(URL) as connection:
        for workers in (2, 8):
            await run(connection, workers)


if __name__ == "__main__":
    trio.run(main)
