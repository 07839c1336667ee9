"""`python -m amqpmesh`: the same as the command `amqpmesh`."""

import sys

from amqpmesh.router.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
