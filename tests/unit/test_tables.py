"""The tables belong together: a new row in one of them must not be forgotten in the others."""

from functools import partial
from typing import get_args

import pytest

from busbw.backends.local import LOCAL as BOUND_BY_ALL
from busbw.backends.pytorch.calls import CALLS
from busbw.ops import OPS
from busbw.ops.settings import CaseSettings
from busbw.runs import cases as planned
from busbw.runs import plan
from busbw.runs.plan import Sweep
from busbw.runs.records import Case, Settings
from busbw.workloads.shapes import step_seconds
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.models.gloo import MODELS, UNMODELLED
from busbw_analysis.models.select import model_for


def test_torch_has_a_call_for_every_op_and_for_nothing_else() -> None:
    assert set(CALLS) == {name for name, op in OPS.items() if not op.local and not op.plain_sockets}


def test_every_local_op_has_a_call_and_nothing_else_has() -> None:
    assert set(BOUND_BY_ALL) == {name for name, op in OPS.items() if op.local}


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_one_default_model_or_a_reason(op: str) -> None:
    defaults = [model for model in MODELS if model.op == op and model.family == "gloo"]
    assert len(defaults) == (op not in UNMODELLED)
    assert (model_for(op, "gloo") in defaults) == bool(defaults)


def test_models_are_of_ops_that_exist() -> None:
    assert {model.op for model in MODELS} | set(UNMODELLED) <= set(OPS)


@pytest.mark.parametrize("name", plan.suites())
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_every_suite_is_a_plan_under_its_own_name(name: str, ranks: int) -> None:
    suite = plan.read_suite(name)
    cases = planned.expand(suite, ranks, 1).cases
    assert suite.name == name
    assert len(set(cases)) == len(cases) > 0
    assert planned.estimated_seconds(suite, cases, partial(step_seconds, cores=2)) > 0


def test_every_field_of_a_case_but_its_size_separates_curves() -> None:
    of_a_curve = {"hosts" if name == "nodes" else name for name in Case.__struct_fields__} - {"size_bytes"}
    assert of_a_curve <= set(SeriesKey.__struct_fields__)


@pytest.mark.parametrize("family", get_args(Settings))
def test_every_family_has_words_for_its_settings_and_makes_cases(family: type[CaseSettings]) -> None:
    sweep = Sweep(ops=tuple(OPS), sizes="1MiB", threads="2", algorithms=("all",))
    settings = [case.settings for case in planned.expand(plan.Plan(sweep=(sweep,)), 4, 1, cores=2).cases]
    of_family = [given for given in settings if isinstance(given, family)]
    assert of_family
    assert all(given.words and not list(given.flaws(4)) for given in of_family)
