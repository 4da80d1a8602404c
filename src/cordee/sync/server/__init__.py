"""Parameter servers: processes that hold the parameters and their optimizer, each a part of them, twice."""
