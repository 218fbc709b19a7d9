"""What a report is made of: tables, figures, findings, a page.

`tables` reads, `counting` has Spark count, `findings` judges, `page` tells; `report` runs them.
"""
