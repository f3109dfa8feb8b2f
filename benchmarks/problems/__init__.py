"""Problems to measure: shapes of real layers, random shapes, and their operands on the GPU."""
