"""Authenticated messages between ranks: HMAC-SHA256 with a key that only the ranks of a job have."""

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
    """The job's secret from environment ``variables``; empty if unset. Raises LaunchError if it is too short."""
    secret = variables.get(VARIABLE, "").strip()
    if 0 < len(secret) < _LEAST_CHARACTERS:
        raise LaunchError(
            f"BUSBW_SECRET has {len(secret)} characters and needs at least {_LEAST_CHARACTERS}: "
            "export BUSBW_SECRET=$(openssl rand -hex 32)"
        )
    return secret.encode()


def new_secret() -> str:
    """A new random secret of 256 bits."""
    return secrets.token_hex(32)


def key_of(secret: bytes, session: str) -> bytes:
    """Key of one launch; ``session`` is new for each launch, which prevents replay of earlier messages."""
    return hmac.digest(secret, session.encode(), "sha256")


def signed(key: bytes, about: str, text: str) -> str:
    """Prefix ``text`` with its HMAC. ``about`` names the purpose; a message is invalid for any other."""
    return _mac(key, about, text) + text


def verified(key: bytes, about: str, message: bytes) -> str | None:
    """The text of ``message``; None if its HMAC does not match the key and the purpose ``about``."""
    try:
        whole = message.decode()
    except UnicodeError:
        return None
    mac, text = whole[:_MAC_CHARACTERS], whole[_MAC_CHARACTERS:]
    return text if hmac.compare_digest(mac.encode(), _mac(key, about, text).encode()) else None


def printable(text: str) -> str:
    """``text`` as one line without control characters, of bounded length."""
    return "".join(character if character.isprintable() else " " for character in text[:_MOST_CHARACTERS])


def _mac(key: bytes, about: str, text: str) -> str:
    return hmac.digest(key, f"{about}\n{text}".encode(), "sha256").hex()
