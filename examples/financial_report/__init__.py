"""An analyst's report on the annual report of a company, written while the annual report is still being read."""
