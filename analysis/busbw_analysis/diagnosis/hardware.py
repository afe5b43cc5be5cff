"""Remarks on the machines of a run: links that carry less than their two ends could, as recorded before it began."""

from collections.abc import Iterator

from busbw.system.catalog import Catalogue
from busbw.system.detect import picture
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.findings import Finding

_MOST = 4
"""So many findings of a host are said one by one; more are mostly one cause."""


def hardware_findings(dataset: Dataset, rows: Catalogue) -> Iterator[Finding]:
    """One finding for every difference, with the hosts that have it. Links that may have been at rest are left out:
    the facts are read before anybody copies.
    """
    found: dict[str, list[str]] = {}
    for host in dict.fromkeys(dataset.runs[0].run.hosts):
        findings = picture(dataset.environment(host), rows).findings
        for finding in findings[:_MOST]:
            found.setdefault(finding, []).append(host)
        if len(findings) > _MOST:
            more = f"{len(findings) - _MOST} more findings of this kind: busbw peaks --here on that host lists them"
            found.setdefault(more, []).append(host)
    for finding, hosts in found.items():
        yield Finding("caution", "hardware", f"On {', '.join(hosts)}: {finding}.")
