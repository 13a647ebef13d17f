"""The version of the package: for the wheel, `--version`, and the provenance of results."""

__version__ = "0.3.0"
PROGRAM = f"cassi {__version__}"
