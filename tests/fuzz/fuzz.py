"""Hostile inputs by the thousand, seeded: run folders, plans and logs to be refused in words, soon and in little room.

    .venv/bin/python tests/fuzz/fuzz.py [--what folders,logs,plans] [--seed N] [--minutes M | --count N]

Exit status 1 when one of them ended otherwise. A failure says with which --seed and --count it is repeated.
"""

import argparse
import importlib
import sys
from typing import Final

CAMPAIGNS: Final = {"folders": "fuzz_folders", "logs": "fuzz_logs", "plans": "fuzz_plans"}
"""What is attacked → the module beside this one whose function ``campaign`` does it."""

_MINUTES: Final = 10.0


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--what", default=",".join(CAMPAIGNS), help="campaigns, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--minutes", type=float, help=f"for each campaign (default: {_MINUTES:g})")
    much.add_argument("--count", type=int, help="inputs of each campaign")
    options = parser.parse_args(arguments)
    wanted = options.what.split(",")
    if unknown := [name for name in wanted if name not in CAMPAIGNS]:
        parser.error(f"--what {unknown[0]}: known are {', '.join(CAMPAIGNS)}")
    minutes = _MINUTES if options.minutes is None and options.count is None else options.minutes
    failed = False
    for name in wanted:
        campaign = importlib.import_module(CAMPAIGNS[name]).campaign(
            options.seed, None if minutes is None else 60 * minutes, options.count
        )
        for line in campaign.failures:
            print(f"{name}: {line}")
        print(
            f"{name}: {campaign.tried} tried from seed {options.seed} on, {len(campaign.failures)} failed, "
            f"the slowest took {campaign.slowest_seconds:.2f} s"
        )
        for kind, tried in campaign.of_each.items():
            print(f"  {tried:>9,} {kind}")
        failed = failed or bool(campaign.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
