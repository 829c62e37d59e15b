"""What a person looks at while Spark works: bars in the terminal, charts in a page."""
