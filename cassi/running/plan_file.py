"""The plan of a reconstruction in a file, so that a series of snapshots is solved in one way."""

import json
from dataclasses import replace
from pathlib import Path

from cassi.choice.plan import Plan
from cassi.errors import InputError, one_line, parse_json
from cassi.files.atomic import check_place, check_readable, write_text
from cassi.priors.learned import LearnedPrior
from cassi.types import PathLike


def save_plan(path: PathLike, plan: Plan, *, overwrite: bool = False) -> None:
    """Write a plan as JSON.

    Raises:
        OutputError: the file exists and `overwrite` is False, or it cannot be written.
    """
    check_place(path, overwrite)
    write_text(path, json.dumps(plan.as_dict()))


def load_plan(path: PathLike, weights: LearnedPrior | None = None) -> Plan:
    """The plan in a file of `save_plan`, with these weights, or else the shipped ones that it names.

    Raises:
        InputError: the file cannot be read, holds no plan of this version of the program, or names other weights.
    """
    try:
        values = parse_json(check_readable(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("holds none")
        return replace(Plan.from_dict(values, weights), source=Path(path).name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {one_line(error)}; expected a plan, as --save-plan writes it") from error
