"""Users of a listener whose passwords the program checks by a function of its own."""

from __future__ import annotations

from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.sasl.mechanisms import SCRAM_ITERATIONS, Question, Questioner
from amqpmesh.router.config.user_checks import Login, UserIdentity
from amqpmesh.router.io.threads import apart

if TYPE_CHECKING:
    import trio

    from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
    from amqpmesh.router.config.user_checks import UserCheck


class AskedUsers(Questioner):
    """The users of a listener, for the clients of one host."""

    iterations: Final = (SCRAM_ITERATIONS,)

    def __init__(self, check: UserCheck, listener: str, host: str = "") -> None:
        """Args: check: of the program. listener: its name. host: the address of the client's host."""
        self._check = check
        self._listener = listener
        self._host = host

    def of(self, host: str) -> AskedUsers:
        """Return the same users for the clients of a host."""
        return AskedUsers(self._check, self._listener, host)

    def question(self, user: str, password: str) -> Question:
        """Return the check of a password, which is not begun yet."""
        login = Login(user=user, password=password, host=self._host, listener=self._listener)
        return Question(partial(self._ask, login), user)

    def verify_plain(self, user: str, password: str) -> bool:
        """Refuse to check a password at once. Raises: NotImplementedError: `question` is for that."""
        raise NotImplementedError

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """Return None: a function that checks passwords knows no verifiers."""
        del user, mechanism
        return None

    async def _ask(self, login: Login, threads: trio.CapacityLimiter) -> UserIdentity | None:
        """Ask the program. Raises: TypeError: the answer is none. Any error of the program."""
        check = self._check
        is_async = iscoroutinefunction(check) or iscoroutinefunction(type(check).__call__)
        # In a tuple: Trio refuses a thread whose result can be awaited.
        (found,) = (check(login),) if is_async else await apart(lambda given: (check(given),), login, threads)
        if isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, UserIdentity):
            raise TypeError(f"the users of listener {self._listener!r} are a {type(found).__name__}, no UserIdentity")
        return found
