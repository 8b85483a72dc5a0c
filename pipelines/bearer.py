"""The bearer token, from where people and pods keep it. Never from an argument, which every process may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from eval_core.errors import UsageError

TOKEN = "KF_PIPELINES_TOKEN"
TOKEN_PATH = "KF_PIPELINES_SA_TOKEN_PATH"
PROJECTED = Path("/var/run/secrets/kubeflow/pipelines/token")

TokenSource = Callable[[], str | None]


def token_source(file: Path | None, environment: Mapping[str, str]) -> TokenSource:
    """A function that gives the token of this moment: a file is read each time, because projected tokens change.

    The first that is there: `file`, the variable `KF_PIPELINES_TOKEN`, the file that `KF_PIPELINES_SA_TOKEN_PATH` names, the
    token that a cluster projects into a pod. None where none is: some installations ask for none.

    Raises:
        UsageError: it can't be read, or can't be a token.
    """
    if file is None and (given := environment.get(TOKEN)):
        token = _checked(given, f"the variable {TOKEN}")
        return lambda: token
    named = environment.get(TOKEN_PATH)
    path = file or (Path(named) if named else PROJECTED if PROJECTED.exists() else None)
    if path is None:
        return lambda: None
    _read(path)
    return lambda: _read(path)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: the token can't be read: {getattr(error, 'strerror', None) or error}; "
            f"give --token-file, {TOKEN} or {TOKEN_PATH}"
        ) from error
    return _checked(text, str(path))


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
        raise UsageError(f"{source} holds no token: needed is one word of printable characters")
    return token
