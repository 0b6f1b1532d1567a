"""A report about finished runs: one HTML file, its figures as SVG, its table as Markdown and LaTeX."""

from asyncmanifold.report.write import write_report

__all__ = ["write_report"]
