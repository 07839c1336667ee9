"""What the router says of itself: one event a line, `TIME LEVEL event key=value ...`, or the same as JSON.

The router logs through `EventLog`; nothing is configured by that, so an embedded router leaves the logging of its
process alone. Only the command line calls `configure`.
"""

import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

ROOT = "amqpmesh"

# A peer chooses its container-id, addresses and descriptions; a log line stays a line whatever they are.
MAX_VALUE_CHARACTERS = 256

# Peers remembered for the suppression of repeats: more than a busy router hears from in ten seconds, and bounded.
MAX_REMEMBERED = 10_000

# Lines on logins are limited where they are written, by what each of them says.
LOGINS = "amqpmesh.logins"

# What other routers of the mesh cause a hundred times a second would fill a disk, too: the field `router` says which
# one did, and `reason` why, if there are reasons.
OF_ROUTERS = frozenset({"advertisement dropped", "distributions differ"})

_PLAIN = re.compile(r"[\w!#$%&()*+,\-./:;<>?@\[\]^{|}~§]+", re.ASCII)
_FIELDS = "amqpmesh_fields"


class EventLog:
    """A logger of events with fields; `bind` adds fields that every line from there on bears.

    Events are constant phrases (`link attached`); whatever varies, and all that a peer sent, is a field. Fields of
    value None are left out. Never a body, never a secret.
    """

    __slots__ = ("_bound", "_logger")

    def __init__(self, name: str, **bound: object) -> None:
        """Args: name: of the module, below `amqpmesh.`; bound: fields of every line."""
        self._logger = logging.getLogger(name)
        self._bound = bound

    def bind(self, **fields: object) -> "EventLog":
        """The same log with more fields in every line."""
        return EventLog(self._logger.name, **{**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """Log for who looks for a fault."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log what happened as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log what somebody may want to change."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exception: BaseException | None = None, **fields: object) -> None:
        """Log what failed; with `exception`, its traceback: a fault of ours, not a peer's."""
        self._log(logging.ERROR, event, fields, exception)

    def _log(
        self, level: int, event: str, fields: Mapping[str, object], exception: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            said = LogEvent(event, {**self._bound, **fields})
            self._logger.log(level, said, extra={_FIELDS: said.fields}, exc_info=exception)


class LogEvent:
    """An event and its fields, as one line for formatters that know nothing of fields."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: Mapping[str, object]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        return _line(self.event, self.fields)


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{key}={escaped(value)}" for key, value in fields.items() if value is not None)])


def event_of(record: logging.LogRecord) -> str:
    """The event of a record, without its fields; of one that another library logged, its message."""
    return record.msg.event if isinstance(record.msg, LogEvent) else record.getMessage()


def escaped(value: object) -> str:
    """A field's value as it stands in a line: cut at 256 characters, then quoted and escaped if it is not plain."""
    text = _shortened(value)
    if _PLAIN.fullmatch(text):
        return text
    # ensure_ascii also hides line separators and right-to-left marks, with which a peer could forge lines.
    return json.dumps(text, ensure_ascii=True)


def _shortened(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "..."


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The fields of a record that are set; none for one that another library logged."""
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    return {key: value for key, value in fields.items() if value is not None}


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2026-05-01T12:00:00.123Z INFO listening url=amqp://127.0.0.1:41234 name=amqp`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it if the record has one."""
        line = f"{_time_of(record)} {record.levelname} {_line(event_of(record), fields_of(record))}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, the fields, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Numbers and booleans stay what they are; everything else is text, cut at 256 characters."""
        fields = {
            key: value if isinstance(value, (bool, int, float)) else _shortened(value)
            for key, value in fields_of(record).items()
        }
        line = {"time": _time_of(record), "level": record.levelname, "event": event_of(record), **fields}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class RepeatFilter(logging.Filter):
    """Lets one event of one peer through once in `interval`; the next one through says how many were `suppressed`.

    Only records with a field `peer` are counted: what a peer can cause at will must not fill a disk. Not those with a
    field `connector`, which connects less and less often to a peer that does not keep it, nor those on logins. What is
    let through is decided by (peer, event) alone, so that a peer cannot escape by varying another field. What routers
    of the mesh cause (`OF_ROUTERS`) is counted by their `router` and by its `reason`, of which there are few.
    """

    def __init__(self, interval: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: interval: seconds; clock: in seconds."""
        super().__init__()
        self._interval = interval
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        event = event_of(record)
        if event in OF_ROUTERS:
            key = (_shortened(fields.get("router")), f"{event} {_shortened(fields.get('reason'))}")
        elif record.name == LOGINS or fields.get("peer") is None or fields.get("connector") is not None:
            return True
        else:
            key = (str(fields["peer"]), event)
        now = self._clock()
        since, suppressed = self._seen.get(key, (None, 0))
        if since is not None and now - since < self._interval:
            self._seen[key] = (since, suppressed + 1)
            return False
        if suppressed:
            setattr(record, _FIELDS, {**fields, "suppressed": suppressed})
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True


class AddFields(logging.Filter):
    """Has every record bear some more fields, before its own."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._added = fields

    def filter(self, record: logging.LogRecord) -> bool:
        """Add them. Returns: True: it is written."""
        setattr(record, _FIELDS, {**self._added, **getattr(record, _FIELDS, {})})
        return True


LogFormat = Literal["text", "json"]
FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure(level: str, format: LogFormat, stream: TextIO, **bearing: object) -> logging.Handler:
    """Send everything below `amqpmesh.` to `stream`, and nothing of it further up.

    Args: level: debug, info, warning or error; stream: usually standard error; bearing: fields of every line.
    Returns: the handler, so that it can be taken off again.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMATTERS[format]())
    handler.addFilter(RepeatFilter())
    if bearing:
        handler.addFilter(AddFields(**bearing))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    return handler
