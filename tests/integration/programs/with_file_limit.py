"""Stands in for ``busbw``: the same command with files that may not grow beyond a size, as by a quota.

``with_file_limit.py BYTES run …``
"""

import resource
import sys

from busbw.cli import main

if __name__ == "__main__":
    limit = int(sys.argv.pop(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    main.main(prog_name="busbw")
