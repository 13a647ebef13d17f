"""What continuous integration runs, for `nox -s tests lint docs` on any machine."""

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True
PARALLEL = ("-n", "auto", "--maxprocesses=4", "--dist", "loadfile")  # a file stays in one process: what its tests share


def install(session: nox.Session, extra: str) -> None:
    """The package as it is developed, with the versions that the tests were run with."""
    session.install("-c", "constraints.txt", "-e", f".[{extra}]")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests; arguments after -- go to pytest."""
    install(session, "test")
    session.run("python", "-m", "pytest", "-ra", *PARALLEL, *session.posargs)


@nox.session
def quick(session: nox.Session) -> None:
    """What needs neither many minutes nor a built site: also what differs between operating systems."""
    install(session, "test")
    session.run("python", "-m", "pytest", "-ra", *PARALLEL, "-m", "not slow and not long", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint and types."""
    install(session, "dev")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The pages, into site/."""
    install(session, "docs")
    session.run("mkdocs", "build", "--quiet")


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist into dist/; what is in them, and that the wheel runs where the sources are not."""
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "-c", "import shutil; shutil.rmtree('dist', ignore_errors=True)")
    session.run("python", "-m", "build")
    session.run("twine", "check", "--strict", *dist(".whl", ".tar.gz"))
    session.run("check-wheel-contents", *dist(".whl"))
    session.install("-c", "constraints.txt", *dist(".whl"))
    with session.chdir(session.create_tmp()):
        session.run("cassi", "simulate", "--size", "32", "--num-bands", "4", "--output", "a.h5", "--overwrite")
        session.run("cassi", "reconstruct", "a.h5", "--solver", "gap-tv", "--figures", "none", "--overwrite")


def dist(*suffixes: str) -> list[str]:
    """The files that were built."""
    from pathlib import Path

    return [str(path.resolve()) for suffix in suffixes for path in sorted(Path("dist").glob(f"*{suffix}"))]
