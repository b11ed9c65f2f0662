"""Start of the program: ``gpucheck`` and ``python -m gpucheck``."""

from __future__ import annotations

import os
import sys

from gpucheck import __version__

FOREIGN = (
    "gpucheck: another package called gpucheck is installed in {folder}; it uses the same folder as "
    "gpucheck-server and the two overwrite each other "
    "(pip uninstall gpucheck gpucheck-server, then pip install gpucheck-server)"
)


def foreign_package() -> str | None:
    """Folder in which a distribution called plain ``gpucheck`` lies beside this one, if there is one."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    is_foreign = any(
        name.lower().startswith("gpucheck-") and name.lower().endswith((".dist-info", ".egg-info")) for name in names
    )
    return folder if is_foreign else None


def main() -> None:
    """Run the command line; ends the process with the exit code of the contract."""
    folder = foreign_package()
    if folder is not None:
        sys.exit(print(FOREIGN.format(folder=folder), file=sys.stderr) or 2)
    if sys.argv[1:] in (["--version"], ["-V"]):  # before anything that takes time to import
        print(f"gpucheck {__version__}")
        return
    # Looking for pydantic plugins of other packages reads the metadata of everything installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from gpucheck.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
