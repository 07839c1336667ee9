"""The router's log: one event a line, `TIME LEVEL event key=value ...`, or the same as JSON.

The router logs through `EventLog`, which configures nothing: an embedded router leaves its process's logging alone.
Only the command line calls `configure`.
"""

import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, Final, Literal, TextIO

ROOT = "amqpmesh"

# Peers choose container-ids, addresses and descriptions; this limits the length of a log line.
MAX_VALUE_CHARACTERS = 256

# Peers remembered for the suppression of repeats: more than a busy router has in ten seconds.
MAX_REMEMBERED = 10_000

# Lines on logins are limited by the code that logs them, by their fields.
LOGINS = "amqpmesh.logins"

# Events that other routers of the mesh can cause a hundred times a second. They would fill a disk, too. The field
# `router` names the router, and `reason` the reason, if there are several.
OF_ROUTERS = frozenset({"advertisement dropped", "distributions differ"})

_PLAIN = re.compile(r"[\w!#$%&()*+,\-./:;<>?@\[\]^{|}~§]+", re.ASCII)
_FIELDS = "amqpmesh_fields"


class EventLog:
    """A logger of events with fields; `bind` adds fields to all its lines.

    Events are constant phrases (`link attached`); variable parts, and all data of a peer, are fields. Fields of value
    None are left out. Message bodies and secrets are never logged.
    """

    __slots__ = ("_bound", "_logger")

    only: ClassVar["_OnlyHandler | None"] = None
    """The handler of `configure`; None: it was not called."""

    def __init__(self, name: str, **bound: object) -> None:
        """Args: name: of the module, below `amqpmesh.`; bound: fields of every line."""
        self._logger = logging.getLogger(name)
        self._bound = bound

    def bind(self, **fields: object) -> "EventLog":
        """Return the same log with more fields in every line."""
        return EventLog(self._logger.name, **{**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """Log details for debugging."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log normal operation."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log a condition that an operator may want to change."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exception: BaseException | None = None, **fields: object) -> None:
        """Log a failure; with `exception` also its traceback, for an internal error."""
        self._log(logging.ERROR, event, fields, exception)

    def _log(
        self, level: int, event: str, fields: Mapping[str, object], exception: BaseException | None = None
    ) -> None:
        logger = self._logger
        if logger.isEnabledFor(level):
            if self._bound:
                fields = {**self._bound, **fields}
            only = EventLog.only
            if only is not None and only.drops(logger, event, fields):
                return
            said = LogEvent(event, fields)
            caught = None if exception is None else (type(exception), exception, exception.__traceback__)
            # `Logger.log` would look for its caller, which is always this file.
            if logging.getLogRecordFactory() is logging.LogRecord:
                record: logging.LogRecord = _EventRecord(logger.name, level, said, caught)
            else:  # the program's own
                record = logger.makeRecord(logger.name, level, __file__, 0, said, (), caught, "_log")
            setattr(record, _FIELDS, said.fields)
            logger.handle(record)


class LogEvent:
    """An event and its fields, as one line for formatters without knowledge of fields."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: Mapping[str, object]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        return _line(self.event, self.fields)


# A record's attributes; those that differ from record to record are set in each.
_SAME = vars(logging.LogRecord("", 0, __file__, 0, "", (), None, "_log"))


class _EventRecord(logging.LogRecord):
    """A record whose file, line, function and process are known: to find them again takes most of its time."""

    def __init__(self, name: str, level: int, said: LogEvent, caught: object) -> None:
        vars(self).update(_SAME)
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg, self.exc_info = said, caught  # type: ignore[assignment]  # as in `Logger.log`
        self.created = time.time()
        self.msecs = int((self.created - int(self.created)) * 1000) + 0.0
        self.relativeCreated = (self.created - _SAME["created"]) * 1000 + _SAME["relativeCreated"]
        self.thread, self.threadName = threading.get_ident(), threading.current_thread().name
        self.process = os.getpid()


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{key}={escaped(value)}" for key, value in fields.items() if value is not None)])


def event_of(record: logging.LogRecord) -> str:
    """Return the event of a record, without its fields; for another library's record, its message."""
    return record.msg.event if isinstance(record.msg, LogEvent) else record.getMessage()


def escaped(value: object) -> str:
    """Return a field's value for a line: cut at 256 characters, then quoted and escaped if it is not plain."""
    if type(value) is int:
        return str(value)
    text = _shortened(value)
    if _PLAIN.fullmatch(text):
        return text
    # ensure_ascii also escapes line separators and right-to-left marks, with which a peer could forge lines.
    return json.dumps(text, ensure_ascii=True)


def _shortened(value: object) -> str:
    text = value if type(value) is str else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "..."


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields of a record that are not None; for another library's record, none."""
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    return {key: value for key, value in fields.items() if value is not None}


def _time_of(record: logging.LogRecord) -> str:
    second = int(record.created // 1)
    return f"{_second_of(second)}.{int((record.created - second) * 1000):03}Z"


@lru_cache(maxsize=4)
def _second_of(second: int) -> str:
    """Return the time of a log line without the part below a second. Busy routers write many lines in each second."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class TextFormatter(logging.Formatter):
    """A formatter of lines such as `2026-05-01T12:00:00.123Z INFO listening url=amqp://127.0.0.1:41234 name=amqp`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and a traceback below it if the record has one."""
        line = f"{_time_of(record)} {record.levelname} {_line(event_of(record), getattr(record, _FIELDS, {}))}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object a line: time, level, event, the fields, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object. Numbers and booleans keep their type; everything else is text, cut at 256 characters."""
        fields = {
            key: value if isinstance(value, (bool, int, float)) else _shortened(value)
            for key, value in fields_of(record).items()
        }
        line = {"time": _time_of(record), "level": record.levelname, "event": event_of(record), **fields}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class RepeatFilter(logging.Filter):
    """A filter that passes one event of one peer once in `interval`; the next one has the number of those `suppressed`.

    Only records with a field `peer` are counted: a peer can cause them at will, and must not fill a disk. Records with
    a field `connector` are not counted, since connectors pause longer and longer. Records on logins are not counted
    either. Only peer and event are compared, so a peer cannot evade the filter by varying another field. Events of
    `OF_ROUTERS` are counted by `router` and `reason`, since both have few values.
    """

    def __init__(self, interval: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: interval: seconds; clock: in seconds."""
        super().__init__()
        self._interval = interval
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written."""
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        key = _repeated(record.name, event_of(record), fields)
        if key is None:
            return True
        now = self._clock()
        if self._is_repeat(key, now):
            return False
        _, suppressed = self._seen.get(key, (now, 0))
        if suppressed:
            setattr(record, _FIELDS, {**fields, "suppressed": suppressed})
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def suppresses(self, name: str, event: str, fields: Mapping[str, object]) -> bool:
        """Return True if `filter` would return False for a record with these fields, which is not made then."""
        key = _repeated(name, event, fields)
        return key is not None and self._is_repeat(key, self._clock())

    def _is_repeat(self, key: tuple[str, str], now: float) -> bool:
        """Return whether the event was written lately; then count it as suppressed."""
        before = self._seen.get(key)
        if before is None or now - before[0] >= self._interval:
            return False
        self._seen[key] = (before[0], before[1] + 1)
        return True


def _repeated(name: str, event: str, fields: Mapping[str, object]) -> tuple[str, str] | None:
    """Return what repeats of an event are counted by; None: they are not counted."""
    if event in OF_ROUTERS:
        return _shortened(fields.get("router")), f"{event} {_shortened(fields.get('reason'))}"
    peer = fields.get("peer")
    if peer is None or name == LOGINS or fields.get("connector") is not None:
        return None
    return str(peer), event


class _OnlyHandler:
    """The handler of `configure`. While all records go to it alone, a repeat needs no record."""

    def __init__(self, root: logging.Logger, handler: logging.Handler, repeats: RepeatFilter) -> None:
        self._root = root
        self._handlers = [handler]
        self._repeats = repeats

    def drops(self, logger: logging.Logger, event: str, fields: Mapping[str, object]) -> bool:
        """Return True if nobody would write the event: it is a repeat, and no other handler gets it."""
        return (
            self._root.handlers == self._handlers
            and logger.parent is self._root
            and not (logger.handlers or self._root.propagate)
            and self._repeats.suppresses(logger.name, event, fields)
        )


class AddFields(logging.Filter):
    """A filter that adds fields to every record, before its own."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._added = fields

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. Returns: True: the record is written."""
        setattr(record, _FIELDS, {**self._added, **getattr(record, _FIELDS, {})})
        return True


_recent: deque[tuple[str, str, str, float]] = deque(maxlen=500)


def recent_lines(most: int | None = None) -> list[tuple[str, str, str, float]]:
    """Return the last lines that were written, the oldest first, 500 at most: logger, level, line, and seconds since
    1970. A program that configures its own logging has none. Args: most: lines; None: all of them.
    """
    return list(_recent) if not most else list(_recent)[-most:]


class _RecentHandler(logging.StreamHandler[TextIO]):
    """A handler that keeps the last lines for those that ask for them by management."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        _recent.append((record.name, record.levelname, line[:LONGEST_RECENT], record.created))
        return line


LONGEST_RECENT: Final = 2048
"""Characters of a line that is kept."""

LogFormat = Literal["text", "json"]
FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure(level: str, format: LogFormat, stream: TextIO, **bearing: object) -> logging.Handler:
    """Send all records below `amqpmesh.` to `stream`, and none to the root logger.

    Args: level: debug, info, warning or error; stream: usually standard error; bearing: fields of every line.
    Returns: the handler, which the caller can remove again.
    """
    handler = _RecentHandler(stream)
    handler.setFormatter(FORMATTERS[format]())
    repeats = RepeatFilter()
    handler.addFilter(repeats)
    if bearing:
        handler.addFilter(AddFields(**bearing))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    # The library that exports spans would log each failed request on standard error; `spans lost` tells of them.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    EventLog.only = _OnlyHandler(root, handler, repeats)
    return handler
