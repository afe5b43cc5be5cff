"""The tables belong together: a new row in one of them must not be forgotten in the others."""

from functools import partial
from typing import get_args

import pytest

from busbw.backends.local import LOCAL as BOUND_BY_ALL
from busbw.backends.pytorch.calls import CALLS
from busbw.ops import OPS
from busbw.ops.settings import CaseSettings, Ranks
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


def test_an_op_has_settings_of_one_family_at_most() -> None:
    families = Sweep(ops=()).families
    assert all(sum(family.belongs_to(op) for family in families) < 2 for op in OPS.values())
    assert all(any(family.belongs_to(op) for op in OPS.values()) for family in families)


@pytest.mark.parametrize("family", get_args(Settings))
def test_every_family_has_words_for_its_settings_and_makes_cases(family: type[CaseSettings]) -> None:
    ranks = Ranks(4, 2, "direct")
    sweep = Sweep(ops=()).with_keys({"threads": "2", "algorithms": ("all",)})
    cases = [case for op in OPS.values() if (own := sweep.of_op(op)) is not None for case in own.cases(op, ranks)]
    settings = [case for case in cases if isinstance(case, family)]
    assert settings
    assert all(one.words and not list(one.flaws(4)) for one in settings)


def test_a_key_of_a_plan_belongs_to_one_family() -> None:
    families = Sweep(ops=()).families
    keys = [*Sweep.__struct_fields__, *(key for family in families for key in family.__struct_fields__)]
    assert len(set(keys)) == len(keys)
