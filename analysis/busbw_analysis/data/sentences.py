"""Clauses written as sentences."""

import re
from typing import Final

_WORD: Final = re.compile(r"(?!busbw\b)[a-z]+(?:[-'][a-z]+)*(?![\w/-]|\.\w)")
"""A first word that is no name: names have underscores, digits, slashes or dots."""


def sentences(*clauses: str) -> str:
    """Join ``clauses`` as sentences, each with one full stop; those without text are left out.

    A name keeps its spelling: a first word such as ``all_reduce`` or ``n7`` does not get a capital letter.
    """
    stripped = (clause.strip().rstrip(". ") for clause in clauses)
    return " ".join(f"{capitalised(clause)}." for clause in stripped if clause)


def capitalised(clause: str) -> str:
    """``clause`` with a capital letter, unless it begins with a name."""
    return f"{clause[0].upper()}{clause[1:]}" if _WORD.match(clause) else clause
