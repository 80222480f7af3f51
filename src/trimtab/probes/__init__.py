"""I/O. Look at the machine, files and engines; never change anything."""
