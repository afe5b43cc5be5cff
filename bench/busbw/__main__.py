"""``python -m busbw`` is the command ``busbw``."""

from busbw.cli.main import main

if __name__ == "__main__":
    main()
