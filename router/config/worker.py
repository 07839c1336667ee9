"""Which of the processes of one router this is."""

from pathlib import Path

from amqpmesh.router.config.tables import Table, setting, table


@table
class WorkerConfig(Table):
    """One of several routers that are one to others, in a process each. No file says it: `amqpmesh run --workers` does.

    Its id is `NAME.NUMBER`, and its certificate, if there is one, that of `NAME`.
    """

    name: str = setting()
    number: int = setting(low=1)
    #: Where each of them has a Unix socket for the others: nobody else may look into it.
    folder: Path = setting()
