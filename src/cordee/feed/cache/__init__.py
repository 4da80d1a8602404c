"""Far rows held near: levels of a cache (device, host memory, disk), what each keeps, and who fills them."""
