"""Messages between ranks that a stranger cannot forge: HMAC-SHA256 with a key that only the ranks of a job have."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from busbw.errors import LaunchError

VARIABLE = "BUSBW_SECRET"
"""The environment variable that gives all ranks of a job the same secret."""

_LEAST_CHARACTERS = 16
_MAC_CHARACTERS = 2 * hashlib.sha256().digest_size
_MOST_CHARACTERS = 1000


def secret_in(variables: Mapping[str, str]) -> bytes:
    """The secret of the job in ``variables``; empty where there is none. Raises LaunchError when it is too short."""
    secret = variables.get(VARIABLE, "").strip()
    if 0 < len(secret) < _LEAST_CHARACTERS:
        raise LaunchError(
            f"BUSBW_SECRET has {len(secret)} characters and needs {_LEAST_CHARACTERS} or more: "
            "export BUSBW_SECRET=$(openssl rand -hex 32)"
        )
    return secret.encode()


def new_secret() -> str:
    """A secret that nobody can guess."""
    return secrets.token_hex(32)


def key_of(secret: bytes, session: str) -> bytes:
    """The key of one launch: ``session`` is new for each, so that no message of an earlier launch is taken again."""
    return hmac.digest(secret, session.encode(), "sha256")


def signed(key: bytes, about: str, text: str) -> str:
    """``text`` behind its HMAC. ``about`` says what it is for: it is taken for nothing else."""
    return _mac(key, about, text) + text


def verified(key: bytes, about: str, message: bytes) -> str | None:
    """The text of ``message``; None when somebody else wrote it, or for something else."""
    try:
        whole = message.decode()
    except UnicodeError:
        return None
    mac, text = whole[:_MAC_CHARACTERS], whole[_MAC_CHARACTERS:]
    return text if hmac.compare_digest(mac.encode(), _mac(key, about, text).encode()) else None


def printable(text: str) -> str:
    """``text`` in one line without control characters, and of bounded length."""
    return "".join(one if one.isprintable() else " " for one in text[:_MOST_CHARACTERS])


def _mac(key: bytes, about: str, text: str) -> str:
    return hmac.digest(key, f"{about}\n{text}".encode(), "sha256").hex()
