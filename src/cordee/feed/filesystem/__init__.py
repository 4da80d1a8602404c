"""Where raw files lie: on local disks, in object stores, on web servers. One module per kind."""
