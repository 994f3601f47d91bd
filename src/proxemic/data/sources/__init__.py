"""Image sources: one's own folders and tables, and the data sets that need no download of a benchmark."""
