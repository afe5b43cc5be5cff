"""``python -m busbw``: the same as the command ``busbw``."""

from busbw.cli.main import main

if __name__ == "__main__":
    main()
