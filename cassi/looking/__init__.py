"""Level 4: figures, colors, scores and the report page of a result.

`figures` draws a result, `report_page` makes the page, `metrics` has the scores.
"""
