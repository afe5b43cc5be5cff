"""The part of a report about fits: each curve in its few numbers, every refusal in words, and what several tell."""

from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import Paragraph, Section
from busbw_analysis.report.tables.fits import fits_table
from busbw_analysis.report.tables.joint_fits import joint_sections


def fits(judgement: Judgement) -> Section:
    """Every fit in its few numbers, and every refusal in words; the joint fits beside them."""
    named = [(curve.series.key.label, curve) for curve in judgement.curves]
    block = fits_table(named) if named else Paragraph("There is no curve to fit.")
    return Section("fits", "Fits", (block,), joint_sections(judgement.regimes))
