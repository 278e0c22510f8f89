"""Tokens: leases, lives, marks of calls."""

from __future__ import annotations

import base64
import os


def new_token() -> str:
    """A token that never comes again: a lease, a life, the mark of a call. No counter: Redis could be rolled back.

    Each instance keeps several, and its id is often one: 16 characters that hold 95 bits. Letters and digits only,
    since an id that begins with `-` is an option to every command line: two letters stand for base64's signs as well.
    """
    return base64.b64encode(os.urandom(12), altchars=b"xy").decode()
