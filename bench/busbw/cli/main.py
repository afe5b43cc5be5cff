"""The table of commands, which are loaded by name; and how errors become exit codes."""

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import click

from busbw import __version__
from busbw.cli.streams import guard
from busbw.errors import BusbwError, UsageError
from busbw.escape import echo, plain_text


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that has it, its line of help, and its name there, where that is not the command's."""

    module: str
    help: str
    function: str | None = None


_JUDGE = "busbw_analysis.cli.main"

COMMANDS: dict[str, dict[str, Command]] = {
    "Measure": {
        "run": Command("busbw.cli.run", "Start ranks here, or join those that torchrun, mpirun or srun started."),
        "selftest": Command("busbw.cli.selftest", "Test the instrument on this machine, in about a minute."),
    },
    "Analyse": {
        "show": Command(_JUDGE, "Print a run's table: every case with its rate, interval, skew and share of the peak."),
        "report": Command(_JUDGE, "Write report.html, its Markdown twin and a JSON summary."),
        "compare": Command(_JUDGE, "Hold one run against another: faster, slower, equal, or cannot tell."),
        "import": Command(
            "busbw_analysis.cli.exchange", "Keep logs of other tools as runs, with the log beside them.", "import_"
        ),
        "export": Command(
            "busbw_analysis.cli.exchange",
            "Write a run as nccl-tests, OSU, CSV, JSON lines, Parquet, OpenMetrics or Markdown.",
        ),
        "fit": Command(_JUDGE, "Fit the cost models to a run and say how far they hold."),
        "predict": Command(
            "busbw_analysis.cli.predict",
            "Say how long a call would take that was not measured, and what of it is extrapolated.",
        ),
        "simulate": Command(
            "busbw_analysis.cli.simulate",
            "Say how long algorithms take on a network that is described, and which link they wait for.",
        ),
        "training": Command(
            "busbw_analysis.cli.training",
            "Say by formula what training a model in a layout sends, keeps, reads and waits for.",
        ),
    },
    "Slurm": {
        "submit": Command("busbw.cli.slurm", "Submit a job to Slurm that measures a plan, or what a run lacks."),
        "status": Command(
            "busbw.cli.slurm", "List jobs and runs together: how each stands, and which belongs to which."
        ),
        "launches": Command(
            "busbw.cli.slurm", "In a batch script: start srun … busbw run … once a launch, until the run is whole."
        ),
    },
    "System": {
        "list": Command("busbw.cli.list", "List ops, algorithms, backends, suites, launchers or runs.", "list_"),
        "doctor": Command(
            "busbw.cli.machine", "Say what this machine is, what can run on it, and what cannot and why."
        ),
        "peaks": Command(
            "busbw.cli.machine",
            "List what hardware can do at most, or with --here what this machine can, and by what it was found.",
        ),
    },
}
"""Heading of the help → name → command. They are loaded one at a time, so that scipy and matplotlib come with those of
the analysis alone.
"""


class _Commands(click.Group):
    """A group that knows its lazy commands by name and turns busbw's errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own
        return [name for commands in COMMANDS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's own
        row = next((commands[cmd_name] for commands in COMMANDS.values() if cmd_name in commands), None)
        if row is None:
            return None
        command: click.Command = getattr(importlib.import_module(row.module), row.function or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, row.help) for name, row in commands.items()])

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's own signature
        streams = guard()
        given = args[0] if args else extra.get("args")
        data_only = "--json" in (sys.argv if given is None else given)
        try:
            return super().main(*args, **extra)
        except SystemExit as leaves:
            status = streams.status_after(leaves.code if isinstance(leaves.code, int) else 1, data_only=data_only)
            raise SystemExit(status) from None
        except OSError as error:
            if not streams.raised(error):
                raise
            raise SystemExit(streams.status_after(1, data_only=data_only)) from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = plain_text(error.message)  # type: ignore[misc] # it is printed with its usage, by click
            raise
        except BusbwError as error:
            echo(f"busbw: {plain_text(str(error))}", err=True)
            ctx.exit(2 if isinstance(error, UsageError) else 1)
        except KeyboardInterrupt:
            echo("busbw: interrupted", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="busbw")
def main() -> None:
    """Measure how fast ranks really talk, compare it with theory and peak, and say where it is lost."""


if __name__ == "__main__":
    sys.exit(main())
