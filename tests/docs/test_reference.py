"""The reference of the command line: the options that all clients share."""

import argparse
import re

from amqpmesh.router.cli import client_peer
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "develop" / "reference.md").read_text(encoding="utf-8")


def options(*, reconnects: bool) -> list[str]:
    """As a usage shows them, without brackets."""
    command = argparse.ArgumentParser(add_help=False)
    client_peer.add_options(command, reconnect="" if reconnects else None)
    if reconnects:
        client_peer.add_exactly_once(command, promise="")
    actions = [action for action in command._actions if action.option_strings]  # argparse has no other way to ask
    return [
        f"{each.option_strings[0]} {each.metavar or each.dest.upper()}" if each.nargs != 0 else each.option_strings[0]
        for each in actions
    ]


def test_the_options_that_say_which_peer_are_those_of_the_commands() -> None:
    rows = re.findall(r"^- `(--[^`]+)` \((.+?)\): \S", TEXT, re.MULTILINE)
    assert [option for option, _ in rows] == options(reconnects=True)
    assert [option for option, of in rows if of == "all"] == options(reconnects=False)
    assert {of for _, of in rows} == {"all", "`send`, `receive`"}
