"""One module per output form. Nothing is decided here."""
