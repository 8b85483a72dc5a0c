"""The run's storage: one API over a local folder, a mounted volume, S3, GCS and Azure.

The promise that nothing counts twice rests on one call, `put_new`: an object that exists is never written
over. `probe` proves at the start of every attempt that the storage keeps it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotSupportedError,
    PreconditionError,
)
from obstore.store import LocalStore, from_url

from eval_core.errors import StorageError, first_line


class Store:
    """Objects under one URI, by keys such as `shards/000001.json`."""

    def __init__(self, uri: str) -> None:
        """Open `uri`: a path, or `s3://`, `gs://`, `az://` (credentials come from the environment).

        Raises:
            StorageError: the URI can't be opened.
        """
        self.uri = uri
        try:
            if "://" in uri:
                self._store: Any = from_url(uri)
            else:
                self._store = LocalStore(Path(uri).absolute(), mkdir=True)
        except (BaseError, OSError, ValueError) as error:
            raise StorageError(f"{uri}: the storage can't be opened: {first_line(error)}") from error

    @property
    def local_path(self) -> Path | None:
        """The folder, where the storage is one."""
        return None if "://" in self.uri else Path(self.uri).absolute()

    def put_new(self, key: str, data: bytes) -> bool:
        """Create `key`; False, and nothing written, where it exists. Atomic among all processes."""
        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except PreconditionError:  # how some S3 servers answer If-None-Match on an existing key
            return False
        except (BaseError, OSError) as error:
            raise self._error("write", key, error) from error
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write `key`, over what it held."""
        try:
            obstore.put(self._store, key, data, use_multipart=False)
        except (BaseError, OSError) as error:
            raise self._error("write", key, error) from error

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """Write `parts`, one after the other and never all in memory, over what `key` held; it changes when all are there."""
        try:
            obstore.put(self._store, key, parts)
        except (BaseError, OSError) as error:
            raise self._error("write", key, error) from error

    def get(self, key: str) -> bytes | None:
        """The bytes of `key`, or None where it doesn't exist."""
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise self._error("read", key, error) from error

    def require(self, key: str, way_out: str) -> bytes:
        """The bytes of `key`; where it is missing, an error that ends with `way_out`."""
        data = self.get(key)
        if data is None:
            raise StorageError(f"{self.uri} has no {key}: {way_out}")
        return data

    def list(self, prefix: str) -> list[str]:
        """All keys below `prefix` (a folder such as `shards`), sorted."""
        try:
            return sorted(item["path"] for page in obstore.list(self._store, prefix) for item in page)
        except (NotFoundError, FileNotFoundError):
            return []
        except (BaseError, OSError) as error:
            raise self._error("list", prefix, error) from error

    def move(self, source: str, target: str) -> None:
        """Rename `source` to `target`; quietly nothing where `source` is gone."""
        try:
            obstore.rename(self._store, source, target)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise self._error("move", source, error) from error

    def delete(self, key: str) -> None:
        """Remove `key`; quietly nothing where it is gone."""
        try:
            obstore.delete(self._store, key)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise self._error("delete", key, error) from error

    def probe(self) -> None:
        """Prove that a second creation of one key is refused.

        Raises:
            StorageError: it is not, so commits on this storage wouldn't be safe; says what is needed.
        """
        key = f"probe/{uuid.uuid4().hex}"
        needed = (
            "needed is a file system with hard links (not a FAT, SMB or FUSE mount without them), or an object store "
            "with conditional creation (S3 with If-None-Match, GCS, Azure)"
        )
        try:
            first, second = self.put_new(key, b"1"), self.put_new(key, b"2")
        except StorageError as error:
            if isinstance(error.__cause__, NotSupportedError):
                raise StorageError(f"{self.uri}: this storage has no put-if-absent; {needed}") from error
            raise
        held = self.get(key)
        with contextlib.suppress(StorageError):
            self.delete(key)
        if not first or second or held != b"1":
            raise StorageError(f"{self.uri}: a second creation of one key was not refused; {needed}")

    def _error(self, verb: str, key: str, error: Exception) -> StorageError:
        text = first_line(error)
        if "No space left" in str(error) or "os error 28" in str(error):
            text = "the disk is full; free room and start again, what was committed is kept"
        elif "Permission denied" in str(error):
            text = "permission denied"
        return StorageError(f"{self.uri}: can't {verb} {key}: {text}")
