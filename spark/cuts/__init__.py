"""Transaction-consistent cuts, as readers use them: a cut as a value, where it comes from, and what it
shows."""
