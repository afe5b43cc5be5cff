"""The part of a report about fits: each curve in its few numbers, every refusal in words, and what several tell."""

from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.report.document import Paragraph, Section
from busbw_analysis.report.tables.fits import fits_table
from busbw_analysis.report.tables.joint_fits import joint_sections


def fits(judgement: Judgement) -> Section:
    """Every fit in its few numbers, and every refusal in words; the joint fits beside them."""
    named = [(curve.series.key.label, curve) for curve in judgement.curves]
    block = fits_table(named) if named else Paragraph("There is no curve to fit.")
    fitted = [curve.fit for curve in judgement.curves if isinstance(curve.fit, Fit)]
    gist = f"Latency and bandwidth of {len(fitted)} of {len(named)} curves, and of all of them together."
    return Section("fits", "Fits", (block,), joint_sections(judgement.regimes), gist=gist)
