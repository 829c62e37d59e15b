"""The names that can be looked up as a host's name at all.

Python encodes a name by IDNA before it asks the resolver, and refuses some with UnicodeError, which is no
OSError: where a connection is made it would pass every handler of failures.
"""

from __future__ import annotations

import errno
from typing import Final

LENGTH_MAX: Final = 255
"""Of a name in the DNS, and more than any address takes."""


def host_problem(host: str) -> str | None:
    """Why this is no host's name or address; None when it may be one.  An empty one is the caller's
    matter."""
    if len(host) > LENGTH_MAX:  # before anything else: encoding takes long for a long one
        return f"the host has {len(host)} characters, more than {LENGTH_MAX}"
    if any(character.isspace() or not character.isprintable() for character in host):
        return f"the host {host!r} holds a blank or what cannot be printed"
    try:
        host.encode("idna")
    except UnicodeError as error:
        return f"the host {host!r} cannot be looked up: {error.__cause__ or error}"
    return None


def check_host(host: str, port: int) -> None:
    """Raises OSError for a name that would make a connection fail with another error."""
    problem = host_problem(host)
    if problem is None and not 0 <= port <= 65535:
        problem = f"{port} is no port"
    if problem is not None:
        raise OSError(errno.EINVAL, problem)
