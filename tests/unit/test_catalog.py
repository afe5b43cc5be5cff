"""The catalogue of peaks: the shipped rows hold together, and a user's file is taken or refused in words."""

import re
from pathlib import Path

import pytest
from testing.narrow import require

from busbw.errors import UsageError
from busbw.ops import limits
from busbw.system.catalog import PLAUSIBLE, VARIABLE, Catalogue, Gpu, Rate, catalogue, own_file, parse


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return catalogue(environment={})


RATE = """\
[[rate]]
kind = "pcie"
name = "PCIe 9"
per = "lane"
bytes_per_second = 15e9
source = "https://example.org/pcie9"
looked_up = "2026-11"
"""
GPU = """\
[[gpu]]
name = "Fast 9000"
names = ["Fast 9000 PCIe"]
memory = "HBM9, 1 TB"
memory_bytes_per_second = 20e12
source = "https://example.org/fast"
looked_up = "2026-11"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_shipped_row_has_its_source_and_month(shipped: Catalogue) -> None:
    rows: list[Rate | Gpu] = [*shipped.rates, *shipped.gpus]
    assert len(rows) > 60
    assert all(row.source.startswith("https://") and row.looked_up.startswith("20") for row in rows)
    assert all(shipped.origin(row) is None for row in rows)
    files = limits.shipped("busbw.system", "peaks")
    assert len(rows) == sum(len(parse(text, name)) for name, text in files.items()), "no row is in two files"


def test_what_is_on_github_is_cited_by_the_page_that_states_it_and_its_commit(shipped: Catalogue) -> None:
    rows: list[Rate | Gpu] = [*shipped.rates, *shipped.gpus]
    pages = {page for row in rows for page in (row.source, row.practical_source) if page and "github.com/" in page}
    assert len(pages) > 10
    for page in pages:
        assert "/tree/" not in page, "a folder states nothing"
        if "/blob/" in page:
            assert re.search("/blob/[0-9a-f]{40}/.+", page), page


def test_no_two_rows_answer_to_the_same_name(shipped: Catalogue) -> None:
    names = [name.casefold() for gpu in shipped.gpus for name in gpu.names]
    rates = [(rate.kind, name) for rate in shipped.rates for name in (rate.name, *rate.names)]
    for group in (names, rates, [gpu.name for gpu in shipped.gpus]):
        assert len(set(group)) == len(group)


def test_every_kind_has_a_row_and_every_generation_of_gpus_its_links(shipped: Catalogue) -> None:
    assert {rate.kind for rate in shipped.rates} == set(PLAUSIBLE)
    linked = [gpu for gpu in shipped.gpus if gpu.link is not None]
    assert len(linked) > 10
    assert all(gpu.pcie is None or shipped.rate("pcie", gpu.pcie) is not None for gpu in shipped.gpus)


@pytest.mark.parametrize(
    ("gpu", "gigabytes_per_second"),
    [
        ("Tesla P100-SXM2-16GB", 80),
        ("Tesla V100-SXM2-32GB", 150),
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA A800-SXM4-80GB", 200),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H200", 450),
        ("NVIDIA B200", 900),
        ("AMD Instinct MI100", 138),
        ("AMD Instinct MI300X", 448),
    ],
)
def test_links_add_up_to_what_is_known_of_the_gpu(shipped: Catalogue, gpu: str, gigabytes_per_second: float) -> None:
    row = require(shipped.gpu(gpu))
    assert row.link is not None
    assert row.links is not None
    link = require(shipped.rate("nvlink", row.link) or shipped.rate("xgmi", row.link))
    assert row.links * link.bytes_per_second == pytest.approx(gigabytes_per_second * 1e9)
    assert link.direction == "one direction"


@pytest.mark.parametrize(
    ("gpu", "gigabytes_per_second", "teraflops"),
    [
        ("Tesla T4", 320, 65),
        ("NVIDIA A10", 600.2, 125),
        ("AMD Instinct MI100", 1228, 184.6),
        ("NVIDIA GeForce RTX 4090", 1008, 165.2),  # 384 bits at 21 Gb/s
        ("NVIDIA GeForce RTX 5090", 1792, 209.5),  # 512 bits at 28 Gb/s
        ("NVIDIA H20-3e", 4800, 148),
    ],
)
def test_rates_of_gpus_are_those_of_the_datasheet(
    shipped: Catalogue, gpu: str, gigabytes_per_second: float, teraflops: float
) -> None:
    row = require(shipped.gpu(gpu))
    assert row.memory_bytes_per_second == pytest.approx(gigabytes_per_second * 1e9)
    assert row.flops["float16"] == pytest.approx(teraflops * 1e12)


def test_practical_rates_are_below_the_nominal_ones(shipped: Catalogue) -> None:
    pairs = [(rate.practical_bytes_per_second, rate.bytes_per_second) for rate in shipped.rates]
    pairs += [(gpu.practical_memory_bytes_per_second, gpu.memory_bytes_per_second) for gpu in shipped.gpus]
    known = [practical / nominal for practical, nominal in pairs if practical is not None]
    assert len(known) > 35
    assert all(0.5 < share < 1 for share in known)


def test_the_same_memory_is_faster_in_every_generation(shipped: Catalogue) -> None:
    order = ["P100 SXM2", "V100 SXM2", "A100 SXM4 40 GB", "A100 SXM4 80 GB", "H100 SXM5", "H200 SXM", "B200 SXM"]
    rates = {gpu.name: gpu.memory_bytes_per_second for gpu in shipped.gpus}
    assert [rates[name] for name in order] == sorted(rates[name] for name in order)


def test_a_gpu_is_found_by_its_whole_name_or_without_one_by_its_identity(shipped: Catalogue) -> None:
    row = require(shipped.gpu("nvidia h200"))
    assert row is shipped.gpu(None, "10de:2335")
    for stranger in ("NVIDIA H20-4e", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H800"):
        assert shipped.gpu(stranger) is None
    # The driver's word counts: an unknown name is not overruled by an identity that is shared.
    assert shipped.gpu("NVIDIA H200 of another speed", "10de:2335") is None
    assert shipped.gpu(None) is None


def test_a_users_file_adds_rows_and_replaces_shipped_ones(tmp_path: Path) -> None:
    h200 = GPU.replace("Fast 9000 PCIe", "NVIDIA H200").replace('"Fast 9000"', '"H200 SXM"').replace("20e12", "4.5e12")
    path = written(tmp_path, RATE + h200 + GPU.replace("9000", "9001"))
    rows = catalogue(path, {})
    added, replaced = rows.rate("pcie", "PCIe 9"), rows.gpu("NVIDIA H200")
    assert added is not None
    assert replaced is not None
    assert replaced.memory_bytes_per_second == 4.5e12
    assert rows.origin(added) == rows.origin(replaced) == str(path)
    assert rows.gpu("Fast 9001 PCIe") is not None
    assert len([gpu for gpu in rows.gpus if gpu.name == "H200 SXM"]) == 1


def test_an_identity_of_several_rows_is_none_of_them_until_the_users_file_says_which(
    shipped: Catalogue, tmp_path: Path
) -> None:
    assert [row.name for row in shipped.identified("1002:740c")] == [
        "MI250X, one of two dies",
        "MI250, one of two dies",
    ]
    assert shipped.gpu(None, "1002:740c") is None
    rows = catalogue(written(tmp_path, GPU + 'pci = ["1002:740c"]\n'), {})
    row = require(rows.gpu(None, "1002:740c"))
    assert row.name == "Fast 9000"


@pytest.mark.parametrize(
    ("gpu", "bits"), [("NVIDIA B200", 7680), ("NVIDIA GB200", 7936), ("NVIDIA B300 SXM6 AC", 7680)]
)
def test_memory_of_blackwell_is_what_its_bus_and_clock_make(shipped: Catalogue, gpu: str, bits: int) -> None:
    row = require(shipped.gpu(gpu))
    assert row.memory_bytes_per_second == pytest.approx(bits / 8 * 3996e6 * 2, rel=1e-3)


def test_every_gpu_has_its_memory_and_every_report_of_a_driver_its_source(shipped: Catalogue) -> None:
    assert [gpu.name for gpu in shipped.gpus if gpu.memory_bytes is None] == []
    reported = [gpu for gpu in shipped.gpus if gpu.memory_source is not None]
    assert len(reported) >= 16
    assert all((gpu.memory_bytes or 0) % (1 << 20) == 0 for gpu in reported), "drivers report MiB"


def test_where_a_users_file_is_looked_for(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert own_file(None, home) is None
    configured = tmp_path / ".config/busbw/peaks.toml"
    configured.parent.mkdir(parents=True)
    configured.write_text(RATE, encoding="utf-8")
    assert own_file(None, home) == configured
    assert own_file(None, {**home, VARIABLE: "/named"}) == Path("/named")
    assert own_file(Path("/given"), {**home, VARIABLE: "/named"}) == Path("/given")
    assert own_file(None, {**home, "XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}) is None
    (tmp_path / "loop").symlink_to("loop")  # nobody can look into it
    assert own_file(None, {**home, "XDG_CONFIG_HOME": str(tmp_path / "loop")}) is None
    assert own_file(None, {**home, "XDG_CONFIG_HOME": "x" * 300}) is None
    assert catalogue(None, home).rate("pcie", "PCIe 9") is not None


def without(text: str, key: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key} ="))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (without(RATE, "source"), "required"),
        (without(GPU, "looked_up"), "missing"),
        (RATE.replace("https://example.org/pcie9", "datasheet"), "'datasheet'"),
        (RATE.replace("2026-11", "2026-13"), "'2026-13'"),
        (RATE + 'speed = "fast"\n', "'speed'"),
        (RATE.replace('"pcie"', '"pci"'), "'kind'"),
        (RATE + 'over = "udp"\n', "'udp'"),
        (RATE + 'direction = "up"\n', "'direction'"),
        (RATE.replace("15e9", "242e9"), "242000000000"),
        (RATE.replace("15e9", "15"), "'bytes_per_second'"),
        (RATE.replace("15e9", "nan"), "nan"),
        (RATE.replace("15e9", '"15 GB/s"'), "got"),
        (RATE + "practical_bytes_per_second = 14e9\n", "'practical_source'"),
        (RATE + 'over = "tcp"\n', "'tcp'"),
        (RATE + "ports = 4\n", "'ports'"),
        (RATE + 'practical_source = "https://example.org/x"\n', "'practical_source'"),
        (RATE + GPU + RATE, "occurs"),
        (GPU + without(GPU, "names").replace("9000", "9001"), "'names'"),
        (GPU + "flops = { bf16 = 1e15 }\n", "'flops'"),
        (
            GPU + 'products = { processors = 0, share = 0.7, depth = 1, memory = 1, source = "https://e.org/p" }\n',
            "'products.processors'",
        ),
        (
            GPU + 'products = { processors = 8, share = 1.7, depth = 1, memory = 1, source = "https://e.org/p" }\n',
            "'products.share'",
        ),
        (
            GPU + 'products = { processors = 8, share = 0.7, depth = 1, memory = 1, source = "own" }\n',
            "'products.source'",
        ),
        (
            GPU + "products = { processors = 8, share = 0.7, depth = 1, memory = 1, attention = [0.5, 2.0], "
            'source = "https://e.org/p" }\n',
            "'products.attention'",
        ),
        (GPU + "flops = { bfloat16 = 2500.0 }\n", "'flops.bfloat16'"),
        (GPU + 'pci = ["0x10de:0x2335"]\n', "'pci'"),
        (GPU + "links = 4\n", "together"),
        (GPU + 'link = "NVLink 4"\nlinks = -3\n', "'links'"),
        (GPU + "lanes = 17\n", "'lanes'"),
        ("rates = 3\n", "'rates'"),
        ('[gpu]\nname = "x"\n', "'gpu'"),
        ("gpu = [3]\n", "number"),
        ("[[gpu]\n", "not TOML"),
    ],
)
def test_a_wrong_row_is_refused_with_file_line_row_and_key(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "mine.toml")
    assert str(caught.value).startswith("mine.toml")
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ['link = "NVLink 99"\nlinks = 4', 'pcie = "PCIe 55"', 'host_link = "NVLink 4"'])
def test_a_link_that_no_row_has_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        catalogue(written(tmp_path, f"{GPU}{key}\n"), {})
    own = require(catalogue(written(tmp_path, RATE + GPU + 'pcie = "PCIe 9"\n'), {}).gpu("Fast 9000 PCIe"))
    assert own.pcie == "PCIe 9"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        catalogue(tmp_path / "absent.toml", {})
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError):
        catalogue(tmp_path / "bytes.toml", {})
