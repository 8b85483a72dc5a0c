"""Image archives that containerd and docker load, written without either.

The format is the one of `docker save`: `manifest.json`, one configuration, one uncompressed tar a layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def write_archive(
    target: Path, tag: str, layers: Sequence[Path], *, env: Sequence[str] = (), entrypoint: Sequence[str] = ()
) -> None:
    """Write an image of the given layers (tar files, the lowest first) under `tag`; the target appears when complete."""
    digests = [_sha256(layer) for layer in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": list(env), "Entrypoint": list(entrypoint) or None},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": f"layer {number}"} for number in range(len(layers))],
    }
    configuration = json.dumps(config).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar" for digest in digests]}]
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w") as archive:
        _add(archive, name, configuration)
        for layer, digest in zip(layers, digests, strict=True):
            archive.add(layer, f"{digest}/layer.tar", recursive=False)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    unfinished.replace(target)


def write_layer(target: Path, files: Mapping[str, bytes | Path], links: Mapping[str, str] | None = None) -> None:
    """Write a layer of single files (mode 755, owned by root, dated 0) and symbolic links."""
    with tarfile.open(target, "w") as layer:
        for path, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            _add(layer, path, data, mode=0o755)
        for path, pointed in (links or {}).items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, pointed
            layer.addfile(link)


def image_id(archive: Path) -> str:
    """The digest of the archive's configuration, by which docker and the kubelet know the image."""
    with tarfile.open(archive) as opened:
        manifest: IO[bytes] | None = opened.extractfile("manifest.json")
        assert manifest is not None
        return str(json.load(manifest)[0]["Config"]).removesuffix(".json")


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
