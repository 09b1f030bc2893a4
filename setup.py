"""Puts the configurations and sweeps that lie beside the packages into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("configs", "sweeps")


class BuildWithConfigurations(build_py):
    """Copy them into the built package; an editable install reads them where they are."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "pfl", "shipped")
        shutil.rmtree(target, ignore_errors=True)
        for name in SHIPPED:
            shutil.copytree(name, target / name)


setup(cmdclass={"build_py": BuildWithConfigurations})
