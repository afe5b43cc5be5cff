"""The table of commands, which are imported only when used, and the mapping of errors to exit codes."""

import importlib
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from busbw.cli.streams import guard
from busbw.errors import BusbwError, LogError, UsageError, nearest
from busbw.escape import echo, plain_text, render_lines
from busbw.runs import collection

_JUDGE = "busbw_analysis.cli.main"
_HISTORY = "busbw_analysis.cli.history"
_GATE = "busbw_analysis.cli.gate"
_FLEET = "busbw_analysis.cli.fleet"

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Measure": {
        "run": ("busbw.cli.run", "Measure operations, on local ranks or on those of torchrun, mpirun or srun."),
        "selftest": ("busbw.cli.selftest", "Test whether measurements on this machine can be trusted (1 minute)."),
    },
    "Analyse": {
        "show": (_JUDGE, "Print a run as a table: rate, interval, skew and share of the peak of every case."),
        "explain": ("busbw_analysis.cli.explain", "Say what a flag or a heading of a table means."),
        "report": (_JUDGE, "Write a report as HTML and Markdown, with a JSON summary."),
        "compare": (_JUDGE, "Compare two runs case by case: faster, slower, equal or cannot tell."),
        "history": (_HISTORY, "Print since when each case is faster or slower, and what else changed then."),
        "index": (_HISTORY, "Gather the summaries of all runs, so that history, sql and list runs are fast."),
        "sql": (_HISTORY, "Query all runs with SQL."),
        "gate": (_GATE, "Decide whether a run passes, by rules or a baseline: pass, fail or cannot tell."),
        "fleet": (_FLEET, "Name the slow nodes, links and switches of a fleet, measured now or stored."),
        "rules": (_GATE, "Write rules for busbw gate from healthy runs, or check a file of rules."),
        "baseline": (_GATE, "Name runs that busbw gate compares with."),
        "import": ("busbw_analysis.cli.exchange", "Convert logs of other tools to runs."),
        "export": (
            "busbw_analysis.cli.exchange",
            "Write a run as nccl-tests, OSU, CSV, JSON lines, Parquet, OpenMetrics or Markdown.",
        ),
        "fit": (_JUDGE, "Fit cost models to a run and report how accurate they are."),
        "predict": (
            "busbw_analysis.cli.predict",
            "Predict the time of a call that was not measured, and mark what is extrapolated.",
        ),
        "simulate": (
            "busbw_analysis.cli.simulate",
            "Simulate algorithms on a described network: their time, and the link that limits them.",
        ),
        "training": (
            "busbw_analysis.cli.training",
            "Compute the traffic, memory, input reads and waiting times of training a model.",
        ),
    },
    "Slurm": {
        "submit": ("busbw.cli.slurm", "Submit a Slurm job that measures a plan or completes a run."),
        "status": ("busbw.cli.slurm", "List jobs and runs, their state, and which job measures which run."),
        "launches": (
            "busbw.cli.slurm",
            "For batch scripts: run `srun busbw run` once per launch until the run is complete.",
        ),
    },
    "System": {
        "list": ("busbw.cli.listing", "List ops, algorithms, backends, suites, launchers or runs."),
        "schema": ("busbw.cli.schema", "Print the JSON Schema of a stored file."),
        "doctor": ("busbw.cli.machine", "Describe this machine: which backends can run here, and why others cannot."),
        "peaks": (
            "busbw.cli.machine",
            "List hardware peak rates; with --here, those of this machine and how they were detected.",
        ),
    },
}
"""Heading in the help → name → module and line in the help. Commands are imported one at a time, so that none
needs what another loads.
"""

EXTRAS = {
    "torch": "run",
    "matplotlib": "report",
    "pandas": "frames",
    "mpi4py": "mpi",
    "distributed": "dask",
    "pynvml": "gpu",
}
"""Optional package → the extra of busbw that installs it."""

_ROWS = {name: row for commands in COMMANDS.values() for name, row in commands.items()}


def _release_signals() -> None:
    """Take down the handlers of signals: one that raises while Python exits would print a traceback.

    From now on signals end the process as usual. Those that only announce a time limit are ignored, because the command
    has ended.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
        if callable(signal.getsignal(number)):
            announces = number in {signal.SIGUSR1, signal.SIGALRM}
            signal.signal(number, signal.SIG_IGN if announces else signal.SIG_DFL)


def _message(error: BusbwError) -> str:
    """The message; that of a log with more than an answer in lines like those of other answers."""
    errors = (each for each in (error, error.__cause__) if isinstance(each, LogError) and str(each) == str(error))
    log = next(errors, None)
    if log is None or not log.lines:
        return f"busbw: {plain_text(str(error))}"
    return render_lines([(label, plain_text(text)) for label, text in (("busbw", log.answer), *log.lines)])


_SUBCOMMANDS: Final = {
    **{name: f"training {name}" for name in ("plan", "volumes", "memory", "roofline", "limits", "models", "log")},
    **{name: f"list {name}" for name in ("ops", "suites", "runs", "backends", "algorithms", "launchers")},
    "check": "rules check",
    "suggest": "rules suggest",
}
"""Commands below another one, as a user may type them without it."""


_LACKING: Final = frozenset({"no-op", "no-ranks"})
"""Codes of logs that lack what options of ``busbw show`` and ``import`` can say."""


class _Commands(click.Group):
    """A click group that imports commands by name and turns busbw's errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own
        return list(_ROWS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's own
        if cmd_name not in _ROWS:
            return None
        with collection.paused():
            module = importlib.import_module(_ROWS[cmd_name][0])
        # ``import`` and ``list`` mean something in Python.
        command: click.Command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a hint for the name of an op, or a mistyped command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from busbw.ops import OPS  # noqa: PLC0415 - only for this hint

            likely = f"run --op {args[0]}" if args[0] in OPS else _SUBCOMMANDS.get(args[0]) or nearest(args[0], _ROWS)
            if likely is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean busbw {likely}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's own signature
        streams = guard()
        try:
            return super().main(*args, **extra)
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
            raise SystemExit(streams.status_after(code)) from None
        except OSError as error:
            if streams.raised(error):
                raise SystemExit(streams.status_after(1)) from None
            if error.filename is None:  # an error of the program
                raise
            # What nobody expected of this machine, such as a folder of somebody else.
            echo(f"busbw: {plain_text(str(error.filename))}: {error.strerror or error}", err=True)
            raise SystemExit(streams.status_after(2)) from None
        except MemoryError:
            echo("busbw: the memory is full, or limited (ulimit -v)", err=True)
            raise SystemExit(2) from None
        except KeyboardInterrupt:  # a signal after the command has ended
            raise SystemExit(1) from None
        finally:
            if not args and extra.get("args") is None:  # the process is the command's own, and now exits
                _release_signals()

    def _instead(self, ctx: click.Context, error: BusbwError) -> Iterator[str]:
        """What to do where the command lacks the options that ``error`` asks for."""
        name = ctx.invoked_subcommand or ""
        command = self.get_command(ctx, name)
        options = {flag for parameter in command.params for flag in parameter.opts} if command is not None else set()
        if error.code in _LACKING and "--nics" not in options:
            yield (
                f"busbw {name} has no such options for logs: give them to busbw import LOG --machine NAME, and the run "
                f"that this stores to busbw {name}"
            )

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = plain_text(error.message)  # type: ignore[misc] # click prints it together with the usage
            raise
        except BusbwError as error:
            echo(_message(error), err=True)
            for note in (*getattr(error, "__notes__", ()), *self._instead(ctx, error)):
                echo(f"  {plain_text(note)}", err=True)
            ctx.exit(2 if isinstance(error, UsageError) else 1)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get(error.name or "")
            if extra is None:
                raise
            echo(f"busbw: this needs {error.name}, which is not installed: pip install 'busbw[{extra}]'", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            echo("busbw: interrupted", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="busbw", prog_name="busbw")
def main() -> None:
    """Measure how fast ranks communicate, compare it with models and hardware peaks, and show where time is lost.

    To begin: busbw run --suite quick, then busbw report latest.
    """


if __name__ == "__main__":
    sys.exit(main())
