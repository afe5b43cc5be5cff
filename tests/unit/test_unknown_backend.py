"""A stored run of a backend that this version has never heard of is judged by the traits that are stored with it."""

import msgspec
from testing.synthetic import case, synthetic_run

from busbw.runs import store
from busbw.runs.facts import HostFacts
from busbw.runs.records import BackendTraits
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.peaks.transports import transport_of

GLOO = BackendTraits(cost_models="gloo", transport="gloo-tcp")


def judged(backend: str, traits: BackendTraits, algorithm: str | None = None) -> Judgement:
    sizes = [1 << power for power in range(8, 24, 3)]
    cases = [case(op, size, backend=backend) for op in ("all_reduce", "ping_pong", "broadcast") for size in sizes]
    cases += [case("all_reduce", size, backend=backend, algorithm=algorithm) for size in sizes if algorithm is not None]
    made = synthetic_run(cases, launches=6)
    run = msgspec.structs.replace(made.run, backend=traits)
    return judge(pool((store.StoredRun(made.path, run, made.rows, ()),)))


def models(judgement: Judgement) -> dict[str, list[float]]:
    """By op: what the model says of each size; nothing where there is none."""
    return {
        curve.series.key.op: []
        if isinstance(curve.model, Unavailable)
        else [prediction.time_ns for prediction in curve.model]
        for curve in judgement.curves
    }


def test_a_backend_that_follows_gloo_is_judged_like_it() -> None:
    known, unknown = judged("gloo", GLOO), judged("foo", GLOO)
    assert models(unknown) == models(known)
    assert models(unknown)["all_reduce"]
    assert [finding.code for finding in unknown.findings] == [finding.code for finding in known.findings]
    assert [str(verdict.status) for verdict in unknown.verdicts] == [str(verdict.status) for verdict in known.verdicts]


def test_the_formula_of_its_own_algorithm_is_that_of_the_rules_which_it_follows() -> None:
    (known,), (unknown,) = (judged(backend, GLOO, "recursive-doubling").comparisons for backend in ("gloo", "foo"))
    expectations = [pair.expected for pair in unknown.pairs]
    assert expectations == [pair.expected for pair in known.pairs]
    assert not any(isinstance(expectation, Unavailable) for expectation in expectations)


def test_a_backend_of_a_family_without_models_has_none() -> None:
    assert models(judged("foo", BackendTraits(cost_models="foo")))["all_reduce"] == []


def test_how_messages_leave_a_host_is_by_the_stored_rules() -> None:
    facts = HostFacts(variables={"NCCL_IB_HCA": "mlx5_0", "GLOO_SOCKET_IFNAME": "eth1"})
    assert transport_of(facts, "nccl-net").ports.value == "mlx5_0"
    assert transport_of(facts, "gloo-tcp").interfaces.value == "eth1"
