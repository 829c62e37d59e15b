"""The sink: `df.write.format("tidegate")` and `writeStream`, exactly once, by job transactions."""
