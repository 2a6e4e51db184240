"""Images as tars of one layer, laid out from this machine's files: no registry is asked, and no base image pulled.

The format is the OCI image layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
FOLDERS = ("etc", "proc", "sys", "dev", "tmp", "run", "var", "out", "usr/lib")
ELF = b"\x7fELF"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


PATH = "PATH=/usr/local/bin:/usr/bin:/bin"


def image(
    target: Path,
    name: str,
    entry: Sequence[str],
    files: Mapping[str, Path],
    user: str = "",
    environment: Sequence[str] = (PATH,),
) -> Path:
    """Writes an image with these files, by their paths in it, and with the libraries that programs are linked with."""
    layer = _layer(dict(files) | _libraries(files.values()))
    config = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {"Env": list(environment), "Entrypoint": list(entry), "User": user},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer]
    described = [_descriptor(LAYER, layer), _descriptor(CONFIG, _json(config, blobs))]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[1], "layers": [described[0]]}
    listed = _descriptor(MANIFEST, _json(manifest, blobs))
    listed["platform"] = {"architecture": ARCHITECTURE, "os": "linux"}
    listed["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(target, "w") as tar:
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode())
        for blob in blobs:
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
    return target


def pause(folder: Path) -> Path:
    """A program that does nothing, linked statically, for the sandbox of each pod."""
    (folder / "pause.c").write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-static", "-O1", folder / "pause.c", "-o", folder / "pause"], check=True)
    return folder / "pause"


def round_the_shim(folder: Path) -> dict[str, Path]:
    """A loader that looks for its preload file elsewhere, and a command that starts a program with it."""
    linked = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    loader = Path(re.findall(r"^\s*(/\S*ld-linux\S*) ", linked, re.MULTILINE)[0])
    (folder / "loader").write_bytes(loader.read_bytes().replace(b"/etc/ld.so.preload", b"/etc/ld.so.nothing"))
    (folder / "round-the-shim").write_text('#!/bin/sh\nexec /usr/bin/other-loader "/usr/bin/$1"\n')
    return {"usr/bin/other-loader": folder / "loader", "usr/bin/round-the-shim": folder / "round-the-shim"}


def _libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """The shared libraries of programs, each where its program looks for it."""
    found = {}
    for program in programs:
        with program.open("rb") as file:
            if file.read(len(ELF)) != ELF:
                continue
        shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(/\S+) \(0x", shown):
            found[path.lstrip("/")] = Path(path).resolve()
    return found


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folders = {
            str(parent) for path in (*files, *(f"{each}/x" for each in FOLDERS)) for parent in Path(path).parents
        }
        for folder in sorted(folders - {"."}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry)
        for path, source in sorted(files.items()):
            _add(tar, path, source.read_bytes(), 0o755, int(source.stat().st_mtime))
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, modified: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, modified  # bytecode is of a source of that very time
    tar.addfile(entry, io.BytesIO(content))


def _json(document: Any, blobs: list[bytes]) -> bytes:
    content = json.dumps(document).encode()
    blobs.append(content)
    return content


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
