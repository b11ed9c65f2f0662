"""Data-parallel training that proves every card was recognised and used."""
