"""``make man``: a man page of every command, from the help that click has of it."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from busbw import __version__
from busbw.cli.main import main


def commands(command: click.Command = main, path: tuple[str, ...] = ("busbw",)) -> Iterator[tuple[str, click.Context]]:
    """Every command with its name, such as ``busbw-rules-check``, and its context."""
    parent = None
    for name in path[:-1]:
        parent = click.Context(click.Command(name), parent, info_name=name)
    # Commands keep their option for help, so it has to be the one that the program has.
    names = main.context_settings["help_option_names"]
    context = click.Context(command, parent, info_name=path[-1], help_option_names=names)
    yield "-".join(path), context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from commands(inner, (*path, name))


def _text(text: str) -> str:
    """Text in roff: no escapes, and no line that is taken for a request."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in plain.splitlines())


def page(name: str, context: click.Context) -> str:
    """The man page of a command."""
    command = context.command
    summary = command.get_short_help_str(limit=200)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.upper()}" "1" "" "busbw {__version__}" "busbw"',
        *(".SH NAME", _text(f"{name} - {summary}")),
        *(".SH SYNOPSIS", rf"\fB{_text(context.command_path)}\fP {_text(usage)}"),
        ".SH DESCRIPTION",
        "\n.PP\n".join(
            _text(part) for part in inspect.cleandoc(command.help or summary).replace("\b\n", "").split("\n\n")
        ),
        ".SH OPTIONS",
    ]
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None and record[1]:
            lines += [".TP", rf"\fB{_text(record[0])}\fP", _text(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in command.list_commands(context):
            lines += [".TP", rf"\fB{_text(f'{name}-{inner}')}\fP(1)"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for title, context in commands():
        (folder / f"{title}.1").write_text(page(title, context), encoding="utf-8")
