"""The part of Prometheus' language that the alert rules use, evaluated over series with a sample each minute."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Series: TypeAlias = Mapping[str, str]
"""Samples by selector, such as `up{job="a"}`, in promtool's notation: `0+60x30`, or `1 1 0`."""

_TOKEN: Final = re.compile(r"\s*([a-z_]+\{[^}]*\}|[a-zA-Z_]\w*|\d+(?:\.\d+)?|\[\d+m\]|==|[-+*/<>(),])")
_LABEL: Final = re.compile(r'(\w+)(=|!=)"([^"]*)"')
_OPERATORS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan"),
}
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}


def samples(text: str) -> list[float]:
    """Return the samples of a series."""
    found: list[float] = []
    for part in text.split():
        ramp = re.fullmatch(r"(-?[\d.]+)([+-][\d.]+)x(\d+)", part)
        if ramp:
            found += [float(ramp[1]) + float(ramp[2]) * each for each in range(int(ramp[3]) + 1)]
        else:
            found.append(float(part))
    return found


class Query:
    """An expression."""

    def __init__(self, text: str, series: Series) -> None:
        self._tokens = _TOKEN.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s+(?=[^\"]*(?:\"[^\"]*\"[^\"]*)*$)", "", text), text
        self._series = [(*_selector(name), samples(values)) for name, values in series.items()]
        self._minute = 0
        self._at = 0

    def at(self, minute: int) -> Vector:
        """Return the result at a minute."""
        self._minute, self._at = minute, 0
        found = self._comparison()
        assert self._at == len(self._tokens), self._tokens[self._at :]
        assert isinstance(found, dict), "an alert is a vector"
        return found

    def _comparison(self) -> Vector | float:
        left = self._sum()
        token = self._peek()
        if token not in _COMPARISONS:
            return left
        self._next()
        right, compare = self._sum(), _COMPARISONS[token]
        assert isinstance(left, dict)
        if isinstance(right, dict):
            return {key: value for key, value in left.items() if key in right and compare(value, right[key])}
        return {key: value for key, value in left.items() if compare(value, right)}

    def _sum(self) -> Vector | float:
        return self._chain(self._product, "+-")

    def _product(self) -> Vector | float:
        return self._chain(self._term, "*/")

    def _chain(self, part: Callable[[], Vector | float], operators: str) -> Vector | float:
        left = part()
        while (token := self._peek()) and token in operators:
            self._next()
            left = _applied(_OPERATORS[token], left, part())
        return left

    def _term(self) -> Vector | float:
        token = self._next()
        if re.fullmatch(r"[\d.]+", token):
            return float(token)
        if token == "(":
            found = self._comparison()
            assert self._next() == ")"
            return found
        if token in ("rate", "increase"):
            assert self._next() == "("
            name, matchers = _selector(self._next())
            minutes = int(self._next()[1:-2])
            assert self._next() == ")"
            return self._grown(name, matchers, minutes, 1.0 if token == "increase" else 1 / (60 * minutes))
        if token == "sum":
            assert self._next() == "by"
            assert self._next() == "("
            kept = set()
            while (label := self._next()) != ")":
                kept.add(label)
            assert self._next() == "("
            inner = self._comparison()
            assert self._next() == ")"
            assert isinstance(inner, dict)
            sums: Vector = {}
            for key, value in inner.items():
                group = frozenset((label, text) for label, text in key if label in kept)
                sums[group] = sums.get(group, 0.0) + value
            return sums
        name, matchers = _selector(token)
        return {labels: values[self._minute] for labels, values in self._selected(name, matchers)}

    def _grown(self, name: str, matchers: Labels, minutes: int, factor: float) -> Vector:
        begin = max(0, self._minute - minutes)
        found = self._selected(name, matchers)
        return {labels: (values[self._minute] - values[begin]) * factor for labels, values in found}

    def _selected(self, name: str, matchers: Labels) -> list[tuple[Labels, list[float]]]:
        return [
            (labels, values)
            for other, labels, values in self._series
            if other == name and matchers <= labels and self._minute < len(values)
        ]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]


def _applied(function: Callable[[float, float], float], left: Vector | float, right: Vector | float) -> Vector | float:
    if isinstance(left, dict) and isinstance(right, dict):
        return {key: function(value, right[key]) for key, value in left.items() if key in right}
    if isinstance(left, dict):
        assert not isinstance(right, dict)
        return {key: function(value, right) for key, value in left.items()}
    if isinstance(right, dict):
        return {key: function(left, value) for key, value in right.items()}
    return function(left, right)


def _selector(text: str) -> tuple[str, Labels]:
    name, _, rest = text.partition("{")
    found = _LABEL.findall(rest)
    assert all(sign == "=" for _, sign, _ in found), "only equality is needed"
    return name, frozenset((label, value) for label, _, value in found)
