"""Commands of busbw in this process, as somebody types them."""

from click.testing import CliRunner, Result

from busbw.cli.main import main


def busbw(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    """What a command prints, with its exit status: it ends by itself, not by an exception that nobody expects."""
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
