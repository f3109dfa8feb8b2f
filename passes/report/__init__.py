"""The report: one self-contained HTML page about a kernel and one of its launches."""

from coordgraph.show.html_report import HtmlReport
from passes.report.gather import Subject, make_report

__all__ = ["HtmlReport", "Subject", "make_report"]
