"""Base template, stylesheet, tables, images and charts of all HTML pages."""

from proxemic.pages.charts import chart
from proxemic.pages.page import Section, data_url, environment, figure, picture, render_page, table

__all__ = ["Section", "chart", "data_url", "environment", "figure", "picture", "render_page", "table"]
