"""Remarks on the machines of a run: links that carry less than their two ends could, as recorded before it began."""

from collections.abc import Iterator, Sequence

from busbw.system.catalog import Catalogue
from busbw.system.detect import picture
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.findings import Finding

_MOST = 4
"""So many findings of a host are said one by one; more are mostly one cause."""


def hardware_findings(dataset: Dataset, rows: Catalogue) -> Iterator[Finding]:
    """One finding for every difference, with the hosts that have it. Links that may have been at rest are left out:
    the facts are read before anybody copies.
    """
    hosts = dict.fromkeys(dataset.runs[0].run.hosts)
    found = by_key((said, host) for host in hosts for said in _said(picture(dataset.environment(host), rows).findings))
    for finding, of in found.items():
        yield Finding("caution", "hardware", f"On {', '.join(of)}: {finding}.")


def _said(findings: Sequence[str]) -> Iterator[str]:
    yield from findings[:_MOST]
    if len(findings) > _MOST:
        yield f"{len(findings) - _MOST} more findings of this kind: busbw peaks --here on that host lists them"
