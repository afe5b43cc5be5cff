"""``python tests/cluster/bed``: see command.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from bed.command import main  # noqa: E402 - the folder above has to be on the path first

sys.exit(main())
