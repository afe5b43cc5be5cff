"""Hardware by name: what is accepted, what is ambiguous, and that every command accepts the same names."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from exhaustive import thinned
from hypothesis import given
from hypothesis import strategies as st

from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.system.catalog import NETWORKS, catalogue
from busbw.system.named import card_named, cards_named, gpu_named, links_named, rows_named

ROWS: Final = catalogue()
GPUS: Final = [row.name for row in ROWS.gpus]
CARDS: Final = [row.name for row in ROWS.rates if row.kind in NETWORKS]


@cache
def printed() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(CliRunner().invoke(main, ["peaks", "--json"]).stdout)
    return document


def run(*arguments: str) -> int:
    return CliRunner().invoke(main, list(arguments)).exit_code


def test_every_name_that_peaks_prints_is_accepted_by_every_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8   2.5\n", encoding="utf-8")
    imported = ("import", str(log), "--ranks", "16", "--hosts", "2", "--results-dir", str(tmp_path))
    simulated = ("simulate", "--op", "barrier", "--ranks", "16", "--ranks-per-host", "8", "--network")
    gpus = [row["name"] for row in printed()["gpus"]]
    cards = [row["name"] for row in printed()["rates"] if row["kind"] in NETWORKS]
    assert (set(gpus), set(cards)) == (set(GPUS), set(CARDS))
    for name in thinned(gpus, 8):
        assert run("training", "memory", "--model", "MLP 1024", "--gpu", name) == 0, name
        assert run(*imported, "--machine", name.replace(",", " "), "--gpu", name) == 0, name
    for name in thinned(cards, 8):
        assert run(*imported, "--machine", name, "--nics", f"8x{name}") == 0, name
        assert run(*simulated, f"rail:nic={name},inner=H100 SXM5") == 0, name


@pytest.mark.parametrize("nic", ["4X NDR", "EDR", "400 Gb/s"])
def test_a_plan_takes_the_same_names(nic: str) -> None:
    assert run("training", "plan", "--model", "Llama 3 8B", "--gpus", "8", "--network", nic, "--gpu", "H100 SXM") == 0
    assert run("training", "plan", "--model", "Llama 3 8B", "--gpus", "8", "--network", nic, "--gpu", "H100") == 2


@given(st.sampled_from(ROWS.gpus), st.data())
def test_a_gpu_is_found_by_each_of_its_names_however_they_are_spaced(gpu: Any, data: st.DataObject) -> None:  # noqa: ANN401
    named = data.draw(st.sampled_from([gpu.name, *gpu.names]))
    name = data.draw(st.sampled_from([named, re.sub("(?i)^(nvidia|amd|intel|aws) ", "", named)]))
    written = data.draw(st.sampled_from([name, name.upper(), name.lower(), name.replace(" ", "-"), f" {name} "]))
    assert gpu_named(ROWS, written) == gpu


@given(st.sampled_from(CARDS), st.integers(1, 16), st.sampled_from(["x", " x ", "×", "*"]))
def test_cards_are_found_with_their_number(name: str, count: int, times: str) -> None:
    assert card_named(ROWS, name.lower()).what == name
    cards = cards_named(ROWS, f"{count}{times}{name}")
    assert (cards.count, cards.card.what) == (count, name)
    assert cards_named(ROWS, name).count == 1


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("H100 SXM", "H100 SXM5"),
        ("H100-SXM5-80GB", "H100 SXM5"),
        ("H200", "H200 SXM"),
        ("A100 SXM 80GB", "A100 SXM4 80 GB"),
        ("MI250X", "MI250X, one of two dies"),
        ("GH200 144GB", "GH200 144 GB"),
        ("GeForce RTX 4090 24GB", "RTX 4090"),
        ("A6000", "RTX A6000"),
        ("H20", "H20"),
        ("H20 141GB", "H20-3e"),
        ("A800 PCIe", "A800 PCIe 80 GB"),
        ("Intel Gaudi 3", "Gaudi 3"),
    ],
)
def test_usual_short_forms_of_gpus(name: str, gpu: str) -> None:
    assert gpu_named(ROWS, name).name == gpu


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("H100", {"H100 SXM5", "H100 PCIe", "H100 NVL"}),
        ("A100 PCIe", {"A100 PCIe 40 GB", "A100 PCIe 80 GB"}),
        ("GH200", {"GH200 96 GB", "GH200 144 GB"}),
        ("A800", {"A800 SXM4 80 GB", "A800 PCIe 80 GB"}),
        ("V100 SXM", {"V100 SXM2", "V100 SXM3"}),
        ("RTX PRO 6000", {"RTX PRO 6000 Server", "RTX PRO 6000 WS", "RTX PRO 6000 Max-Q"}),
        ("L2", set()),
        ("A16", set()),
        ("RTX 3080", {"RTX 3080 10 GB", "RTX 3080 12 GB"}),
        ("RTX 2080", set()),
        ("RTX 3090 Ti", set()),
        ("RTX 4090 D", set()),
        ("SXM5", set()),
        ("", set()),
    ],
)
def test_a_name_of_several_gpus_or_of_none_is_refused(name: str, meant: set[str]) -> None:
    with pytest.raises(UsageError) as refused:
        gpu_named(ROWS, name)
    assert refused.value.code == "gpu"
    if meant:
        named = str(refused.value).partition(" may be ")[2].partition(";")[0]
        assert set(re.split(", | or ", named)) == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [("H1000", {"H100", "H200", "H800"}), ("4X NRD", {"4X NDR", "4X XDR", "4X SDR"}), ("foobar", set())],
)
def test_names_near_an_unknown_one_are_offered_models_and_like_beginnings_first(given: str, meant: set[str]) -> None:
    with pytest.raises(UsageError) as refused:
        rows_named(ROWS, given)
    assert set(re.findall(r"[A-Z0-9]+(?: [A-Z]+)?(?=, | or |\?)", str(refused.value).partition("mean ")[2])) == meant


@pytest.mark.parametrize("text", ["400Gb/s", "400 Gb/s", "400G", "400Gbps", "400Gbit/s", "50GB/s", "0.4T"])
def test_a_rate_is_a_card_of_no_kind(text: str) -> None:
    cards = cards_named(ROWS, f"8x{text}")
    assert (cards.count, cards.card.kind, cards.card.practical) == (8, None, None)
    assert cards.card.nominal == pytest.approx(50e9)


@pytest.mark.parametrize("text", ["NDR", "0x4X NDR", "H100", "8", "", "8x", "400GB"])
def test_what_is_no_card_or_several_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        cards_named(ROWS, text)
    assert refused.value.code == "network"


def test_short_forms_of_cards_and_the_links_of_a_gpu() -> None:
    names = ("EDR", "100GbE", "EFA P5", "slingshot", "p5e.48xlarge", "TCPX")
    assert [card_named(ROWS, name).what for name in names] == [
        *("4X EDR", "100G Ethernet", "EFA of P5", "Slingshot 11", "EFA of P5", "GPUDirect-TCPX")
    ]
    assert links_named(ROWS, "H100 SXM5", "inner").nominal == pytest.approx(18 * 25e9)
    with pytest.raises(UsageError) as refused:
        links_named(ROWS, "L40S", "inner")
    assert refused.value.code == "gpu"
