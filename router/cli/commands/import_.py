"""`amqpmesh import FILE`: a configuration of Qpid Dispatch or Skupper Router, as one of this router."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli.dispatch.conf_syntax import MOST_OCTETS, Section, sections
from amqpmesh.router.cli.dispatch.fates import Fate
from amqpmesh.router.cli.dispatch.translation import Translation, translate
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.folder import write_public, write_secret
from amqpmesh.router.cli.output.terminal import printable, table

_CONFIG, _POLICY = "amqpmesh.toml", "policy.toml"
_WIDE = 1_000  # columns: nothing is cut, since users search this for their keys


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Translate a configuration of Qpid Dispatch (qdrouterd.conf) or Skupper Router (skrouterd.conf), also one in "
        f"JSON. The command writes {_CONFIG}; {_POLICY}, if virtual hosts have policies; and a file for each password. "
        "It says of each line what became of it: kept, changed, not needed, or missing, which has no counterpart. If a "
        "line was changed or is missing, the exit status is 5."
    )
    command.epilog = EPILOG
    command.add_argument("file", metavar="FILE", type=Path, help="the file to translate")
    command.add_argument(
        "--vhosts", metavar="F", type=Path, action="append", default=[], help="a file of the policyDir; may be repeated"
    )
    command.add_argument(
        "--directory", metavar="DIR", type=Path, default=Path(), help="where to write the files; default: here"
    )
    command.add_argument("--force", action="store_true", help="overwrite files that are there")
    command.add_argument("--dry-run", action="store_true", help="write nothing: print the files, then the account")
    command.add_argument("--json", action="store_true", help="print the account as JSON")
    command.set_defaults(command=import_one)


def import_one(given: argparse.Namespace) -> int:
    """Translate a file. Returns: 0, or 5 if a line was changed or is missing. Raises: CommandError: it is malformed."""
    given_files = enumerate((given.file, *given.vhosts))
    made = translate([each for position, file in given_files for each in _sections(file, position)], given.file.name)
    files = {_CONFIG: made.config, **({} if made.policy is None else {_POLICY: made.policy})}
    if given.dry_run:
        shown = {} if given.json else files
        print("\n".join(f"# {name}\n{text}" for name, text in shown.items()))
    else:
        _write(given.directory, files, made.secrets, force=given.force)
    _tell(made, [*files, *made.secrets], as_json=given.json)
    return Exit.NO if any(each.fate.needs_a_look for each in made.fates) else Exit.DONE


def _sections(file: Path, position: int) -> list[Section]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_OCTETS + 1)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    if len(data) > MOST_OCTETS:
        raise CommandError(f"{file}: is larger than {MOST_OCTETS} octets")
    try:
        return sections(data.decode(), file.name, position)
    except UnicodeDecodeError:
        raise CommandError(f"{file}: is not UTF-8") from None


def _write(directory: Path, files: Mapping[str, str], secrets: Mapping[str, str], *, force: bool) -> None:
    """Write all files, or none if one is there already."""
    if not force:
        for name in (*files, *secrets):
            if (directory / name).exists():
                raise CommandError(f"{directory / name}: is there already; --force overwrites it")
    directory.mkdir(parents=True, exist_ok=True)
    for name, password in secrets.items():
        write_secret(directory / name, f"{password}\n".encode())
    for name, text in files.items():
        write_public(directory / name, text.encode())


def _tell(made: Translation, files: list[str], *, as_json: bool) -> None:
    if as_json:
        lines = [
            {"file": each.line.file, "line": each.line.number, "key": each.key, "fate": each.fate, "words": each.words}
            for each in made.fates
        ]
        told = {"files": files, "lines": lines, "advice": made.advice}
        print(json.dumps(told, ensure_ascii=False, indent=2))
        return
    rows = [list(map(printable, (str(each.line), each.key, each.fate, each.words))) for each in made.fates]
    print("\n".join(table(("LINE", "KEY", "BECAME", "HERE"), rows, _WIDE, ())))
    counts = Counter(each.fate for each in made.fates)
    print()
    print(f"{', '.join(f'{counts[fate]} {fate}' for fate in Fate)}")
    for each in made.advice:
        print(f"to do: {printable(each)}")
    print(f"amqpmesh: {', '.join(files)}; check with: amqpmesh check {_CONFIG}", file=sys.stderr)
