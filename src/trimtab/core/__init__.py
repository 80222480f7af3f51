"""Pure. Nouns only: frozen data classes with properties, no behaviour and no I/O."""
