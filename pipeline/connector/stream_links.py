"""The links of a stream: one in the reader's process, or several, each in its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from amqpmesh.pipeline.connector.link_process import LinkProcess
from amqpmesh.pipeline.connector.offers import Offers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.pipeline.connector.intake import State
    from amqpmesh.pipeline.connector.options import Options


class Ask(NamedTuple):
    """A question to a link, by its number: a method of `Offers`, with arguments."""

    link: int
    question: str
    arguments: tuple[Any, ...] = ()


class Link(Protocol):
    """A link that is asked, and answers in the order of the questions."""

    def ask(self, question: str, *arguments: Any) -> None:
        """Send a question."""

    def answer(self) -> Any:
        """Return the answer to the first question that has none. Raises: its error."""

    def hang_up(self) -> None:
        """Begin to release what is not accepted."""

    def wait(self) -> None:
        """Wait until that is done."""


class _Here:
    """A link in this process. A question is asked when its answer is wanted."""

    def __init__(self, options: Options) -> None:
        self._offers = Offers(options)
        self._asked: list[tuple[str, tuple[Any, ...]]] = []

    def ask(self, question: str, *arguments: Any) -> None:
        self._asked.append((question, arguments))

    def answer(self) -> Any:
        question, arguments = self._asked.pop(0)
        return getattr(self._offers, question)(*arguments)

    def hang_up(self) -> None:
        pass

    def wait(self) -> None:
        self._offers.stop()


class Links:
    """All links of a stream. They work at the same time: each question is sent before an answer is waited for."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._links: list[Link] = []

    def start(self) -> None:
        """Connect and attach all. Raises: AmqpMeshError: one of them cannot; then all are stopped."""
        number = self._options["links"]
        try:
            for each in range(number):
                self._links.append(LinkProcess(self._options, each) if number > 1 else _Here(self._options))
            self.all([Ask(each, "start") for each in range(number)])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Release the deliveries that are not accepted, and close; a second call meanwhile waits as well."""
        for each in self._links:
            each.hang_up()
        for each in self._links:
            each.wait()

    def all(self, asked: Sequence[Ask]) -> list[Any]:
        """Return the answers to questions. Raises: the first error of an answer, after all were received."""
        for each in asked:
            self._links[each.link].ask(each.question, *each.arguments)
        answers: list[Any] = []
        failure: Exception | None = None
        for each in asked:
            try:
                answers.append(self._links[each.link].answer())
            except Exception as error:  # of any link; the others' answers must not wait for later questions
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def states(self) -> list[State]:
        """Return the state of each link. Raises: as `Offers.state`."""
        return self.all([Ask(each, "state") for each in range(len(self._links))])

    def take(self, count: int, octets: int) -> list[int]:
        """Take up to `count` deliveries of all links, of each in proportion to those that wait there.

        Args: octets: in all; a link's part is equal, but each gives one delivery at least, if it is to give any.
        Returns: how many of each. Raises: as `Offers.take`.
        """
        number = len(self._links)
        counts = [count] if number == 1 else divided(count, [each.waiting for each in self.states()])
        asked = [Ask(link, "take", (most, max(1, octets // number))) for link, most in enumerate(counts) if most]
        taken = dict(zip((each.link for each in asked), self.all(asked), strict=True))
        return [taken.get(link, 0) for link in range(number)]


def divided(count: int, waiting: Sequence[int]) -> list[int]:
    """Divide a number of rows over links, in proportion to those that wait there, and never more than these."""
    total = sum(waiting)
    if total <= count:
        return list(waiting)
    found, before = [], 0
    for each in waiting:
        # Rounded sums, so that the parts are `count` together.
        found.append((before + each) * count // total - before * count // total)
        before += each
    return found
