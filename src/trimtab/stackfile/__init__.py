"""The stack file: read.py touches the disk, decode.py turns a mapping into a Stack."""
