"""`spark.readStream.format("tidegate")`: where a stream is, and how far its next micro-batch goes."""
