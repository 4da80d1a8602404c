"""What processes and hosts give each other: pairs of a map-reduce, and blocks of data that go to local disks."""
