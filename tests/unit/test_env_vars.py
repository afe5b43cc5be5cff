"""Which variables are recorded, and which of them are a host's."""

import pytest

from busbw.system.environment import RANK_VARIABLES, VARIABLES, in_common, recorded, without_places


def test_the_list_of_variables_names_no_secret_and_nothing_twice() -> None:
    for name in VARIABLES:
        assert not any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "URI")), name
    assert len(set(VARIABLES)) == len(VARIABLES)
    assert set(VARIABLES) >= RANK_VARIABLES


def test_only_what_is_set_and_listed_is_recorded() -> None:
    environ = {"SLURM_JOB_ID": "7", "NCCL_ALGO": "", "SLURM_JOB_USER": "me", "PMIX_SERVER_URI4": "x", "HOME": "/"}
    assert recorded(environ) == {"SLURM_JOB_ID": "7", "NCCL_ALGO": ""}


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_how_torch_allocates_is_recorded_for_it_decides_how_gpus_copy_to_each_other(name: str) -> None:
    assert recorded({name: "expandable_segments:True"}) == {name: "expandable_segments:True"}


def test_another_process_gets_no_place_and_all_that_the_user_has_set() -> None:
    places = {"PMI_RANK": "0", "PMI2_FD": "7", "PMIX_NAMESPACE": "slurm.pmix.1.0", "OMPI_COMM_WORLD_SIZE": "2"}
    rest = {"PMIX_MCA_gds": "hash", "OMPI_MCA_pml": "ob1", "MPIR_CVAR_CH4_NETMOD": "ofi", "SLURM_JOB_ID": "1"}
    assert without_places({**places, **rest}) == rest


@pytest.mark.parametrize(
    ("ranks", "alike"),
    [
        ([{"A": "1", "B": "2"}], {"A": "1", "B": "2"}),
        ([{"A": "1", "B": "2"}, {"A": "1", "B": "3"}], {"A": "1"}),
        ([{"A": "1", "B": "2"}, {"A": "1"}], {"A": "1"}),
        ([{"A": "1"}, {"A": "1", "B": "2"}], {"A": "1"}),
        ([{"SLURM_PROCID": "0", "A": "1"}], {"A": "1"}),
    ],
)
def test_a_host_has_what_its_ranks_have_alike(ranks: list[dict[str, str]], alike: dict[str, str]) -> None:
    assert in_common(ranks) == alike
