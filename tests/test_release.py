"""What a release says of itself agrees: version, changelog, citation, packages, workflows."""

import re
import tomllib
from pathlib import Path

import yaml

import cassi

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_version_is_that_of_changelog_and_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert newest.groups() == (cassi.__version__, str(citation["date-released"]))
    assert citation["version"] == cassi.__version__
    assert citation["license"] == PROJECT["license"]


def test_conda_environment_has_what_the_package_depends_on() -> None:
    """The same names, but for two, with the same versions; a Python that is claimed; and nothing else but pip."""

    def versions(requirements: list[str]) -> dict[str, str]:
        return dict(re.fullmatch(r"([\w-]+)(.*)", one).groups() for one in requirements)

    stated = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = versions([one for one in stated if isinstance(one, str)])
    other = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = versions([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["formats"]])
    python = conda.pop("python")
    assert conda == {other.get(name, name): version for name, version in wanted.items()} | {"pip": ""}
    assert f"Programming Language :: Python :: {python.removeprefix('=')}" in PROJECT["classifiers"]


def test_container_copies_what_the_build_needs() -> None:
    """Each file that it copies exists, and pyproject.toml names no other."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    assert {"cassi", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= copied
    let_in = {one[1:] for one in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if one[0] == "!"}
    assert let_in == copied
    python = re.search(r"^FROM python:([\d.]+)", text, re.M)
    assert python is not None and f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]


def test_workflows_run_the_sessions_there_are_on_the_pythons_that_are_claimed() -> None:
    sessions = set(re.findall(r"@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(encoding="utf-8")))
    text = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"nox -s (\w+)", text)) == sessions
    jobs = yaml.safe_load(text)["jobs"]
    claimed = [one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if ":: 3." in one]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == claimed
    assert all(one in jobs for job in jobs.values() for one in [job.get("needs", "linux")])


def test_addresses_name_one_repository() -> None:
    files = ["README.md", "CITATION.cff", "pyproject.toml", ".github/ISSUE_TEMPLATE/config.yml"]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / "docs/notebooks").glob("*.ipynb")]
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    found = set(re.findall(r"github(?:\.com)?/([\w-]+/cassi)\b", text)) - {"license/cassi"}
    assert found == {re.sub("https://github.com/", "", PROJECT["urls"]["Homepage"])}


def test_wheel_takes_what_is_no_python() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = [
        (ROOT.joinpath(*name.split(".")), one) for name, globs in tools["package-data"].items() for one in globs
    ]
    taken = {path for folder, one in patterns for path in folder.glob(one)}
    there = {path for path in (ROOT / "cassi").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in there if path.suffix != ".py"} == taken
